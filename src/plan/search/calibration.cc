// The calibration file (JSON, with a version), the defaults for machines that were never measured,
// and the time of a message between its samples.
#include "plan/search/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "config/job_parts.h"

namespace tutti {

using nlohmann::json;

namespace {

constexpr int kVersion = 1;

/// Samples of a transport of which only latency and bandwidth are known.
TransportRates straight(double latency, double bytes_per_second, double flag) {
  TransportRates rates{{}, flag};
  for (int64_t bytes = 64; bytes <= int64_t{16} << 20; bytes *= 16)
    rates.messages.push_back({bytes, latency + static_cast<double>(bytes) / bytes_per_second});
  return rates;
}

json rates_json(const Rates& rates) { return {{"alone", rates.alone}, {"all", rates.all}}; }
/// Throws Error when a rate is not above 0: costs divide by it.
Rates rates_of(const json& node) {
  const Rates rates{node.at("alone").get<double>(), node.at("all").get<double>()};
  if (!(rates.alone > 0 && rates.all > 0)) throw Error("a rate is not above 0");
  return rates;
}

/// Throws Error when samples are not ascending: message_seconds() looks for neighbours among them.
TransportRates transport_of(const json& node) {
  TransportRates rates;
  rates.flag = node.at("flag").get<double>();
  for (const json& sample : node.at("messages")) {
    rates.messages.push_back({sample.at(0).get<int64_t>(), sample.at(1).get<double>()});
    const size_t n = rates.messages.size();
    if (rates.messages.back().seconds <= 0 || rates.messages.back().bytes <= 0 ||
        (n > 1 && rates.messages[n - 2].bytes >= rates.messages[n - 1].bytes))
      throw Error("messages are not ascending, or one takes no time");
  }
  if (rates.messages.empty()) throw Error("a transport without messages");
  return rates;
}

}  // namespace

Calibration default_calibration(DeviceKind device, int cores, bool narrow) {
  Calibration c;
  c.source = "default";
  c.cores = std::max(1, cores);

  // Round figures, in bytes or FLOPs per second: a search orders layouts by their proportions.
  const bool gpu = device == DeviceKind::kCuda;
  c.matmul.assign(static_cast<size_t>(c.cores), !gpu ? 6e10 : narrow ? 4e14 : 4e13);
  c.copy = gpu ? Rates{3e12, 3e12} : Rates{1.6e10, 8e9};
  c.fold = gpu ? Rates{2.5e12, 2.5e12} : Rates{1.6e10, 8e9};
  c.update = gpu ? Rates{2.5e12, 2.5e12} : Rates{1.2e10, 7e9};
  c.tier = gpu ? 5e10 : 1e9;

  // Latency in seconds, bytes per second, seconds of a flag (0: the transport has no windows).
  for (const TransportPart& part : parts<TransportPart>())
    c.transports[std::string(part.name)] = part.gpu       ? straight(1.2e-5, 1.5e11, 0)
                                           : part.windows ? straight(2e-6, 6e9, 5e-7)
                                                          : straight(2e-5, 2e9, 0);
  c.transports[kNetwork] = gpu ? straight(2e-5, 2.5e10, 0) : straight(3e-5, 1.25e9, 0);
  return c;
}

const TransportRates& Calibration::rates_of(const std::string& transport) const {
  const auto found = transports.find(transport);
  if (found == transports.end())
    throw Error(fmt::format("calibration {}: no rates of transport {}", source, transport));
  return found->second;
}

std::string calibration_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/tutti/calibration.json";
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr && *home != 0 ? home : ".") + "/.cache/tutti/calibration.json";
}

std::string to_json(const Calibration& c) {
  json transports = json::object();
  for (const auto& [name, rates] : c.transports) {
    json messages = json::array();
    for (const MessageSample& m : rates.messages) messages.push_back({m.bytes, m.seconds});
    transports[name] = {{"flag", rates.flag}, {"messages", messages}};
  }
  return json({{"version", kVersion},
               {"cores", c.cores},
               {"matmul_flops", c.matmul},
               {"copy_bytes", rates_json(c.copy)},
               {"fold_bytes", rates_json(c.fold)},
               {"update_bytes", rates_json(c.update)},
               {"disk_bytes", c.tier},
               {"transports", transports}})
             .dump(1) +
         "\n";
}

Calibration parse_calibration(const std::string& text, const std::string& source) {
  try {
    const json node = json::parse(text);

    // Another version is refused: its numbers may mean something else.
    if (node.at("version").get<int>() != kVersion)
      throw Error(fmt::format("it has version {}, this program reads {}",
                              node.at("version").get<int>(), kVersion));

    // Every rate is checked here, so that the cost model can divide by it.
    Calibration c;
    c.source = source;
    c.measured = true;
    c.cores = node.at("cores").get<int>();
    c.matmul = node.at("matmul_flops").get<std::vector<double>>();
    if (c.cores < 1 || c.matmul.size() != static_cast<size_t>(c.cores))
      throw Error("not one matmul rate for each core");
    if (std::any_of(c.matmul.begin(), c.matmul.end(), [](double rate) { return !(rate > 0); }))
      throw Error("a rate is not above 0");
    c.copy = rates_of(node.at("copy_bytes"));
    c.fold = rates_of(node.at("fold_bytes"));
    c.update = rates_of(node.at("update_bytes"));
    c.tier = node.at("disk_bytes").get<double>();
    if (!(c.tier > 0)) throw Error("a rate is not above 0");
    for (const auto& [name, rates] : node.at("transports").items())
      c.transports[name] = transport_of(rates);

    // Files are of machines that compute on their cores, so GPUs' transports are not asked for.
    std::vector<std::string> wanted =
        names_where<TransportPart>([](const TransportPart& part) { return !part.gpu; });
    wanted.emplace_back(kNetwork);
    for (const std::string& name : wanted)
      if (!c.transports.contains(name)) throw Error(fmt::format("transport {} is missing", name));
    return c;
  } catch (const json::exception&) {
    throw Error(
        fmt::format("{}: it is no file of `tutti calibrate`; write it again with it", source));
  } catch (const std::exception& e) {
    throw Error(
        fmt::format("{}: no calibration of this version: {}; write it again with `tutti calibrate`",
                    source, e.what()));
  }
}

Calibration load_calibration(const std::string& path, int cores) {
  if (!path_exists(path)) return default_calibration(DeviceKind::kCpu, cores);
  return parse_calibration(read_file(path), path);
}

double message_seconds(const TransportRates& rates, double bytes) {
  TUTTI_CHECK(!rates.messages.empty(), "a transport without messages");
  const auto& list = rates.messages;
  const auto at = [](const MessageSample& s) { return static_cast<double>(s.bytes); };

  // Below the first sample latency is all; beyond the last one bandwidth is. In between, a line
  // joins the two neighbours.
  if (bytes <= at(list.front())) return list.front().seconds;
  if (bytes >= at(list.back())) return list.back().seconds * bytes / at(list.back());
  const auto next = std::find_if(list.begin(), list.end(),
                                 [&](const MessageSample& s) { return at(s) >= bytes; });
  const MessageSample &a = *(next - 1), &b = *next;
  return a.seconds + (b.seconds - a.seconds) * (bytes - at(a)) / (at(b) - at(a));
}

}  // namespace tutti
