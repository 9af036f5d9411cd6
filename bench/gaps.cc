// CUPTI hands its records over in buffers, on a thread of its own, to functions without an
// argument: hence the one recorder of the process.
#include "gaps.h"

#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "base/error.h"

namespace tutti {

namespace {

constexpr size_t kBufferBytes = 8 << 20, kBufferAlignment = 8;
constexpr CUpti_ActivityKind kWatched[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

struct Work {
  uint64_t begin, end;  // nanoseconds
  std::string name;
};

/// LibTorch's own copy of the library: it is loaded already.
class Cupti {
 public:
  Cupti() : handle_(::dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL)) {
    if (handle_ == nullptr) throw Error(fmt::format("CUPTI could not be opened: {}", ::dlerror()));
    find(register_callbacks, "cuptiActivityRegisterCallbacks");
    find(enable, "cuptiActivityEnable");
    find(disable, "cuptiActivityDisable");
    find(flush_all, "cuptiActivityFlushAll");
    find(next_record, "cuptiActivityGetNextRecord");
    find(dropped_records, "cuptiActivityGetNumDroppedRecords");
    find(result_string, "cuptiGetResultString");
  }

  void check(CUptiResult result, const char* call) const {
    if (result == CUPTI_SUCCESS) return;
    const char* text = "";
    result_string(result, &text);
    throw Error(fmt::format("{}: {}", call, text));
  }

  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush_all;
  decltype(&cuptiActivityGetNextRecord) next_record;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records;
  decltype(&cuptiGetResultString) result_string;

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    if (function == nullptr) throw Error(fmt::format("libcupti.so.13 has no {}", name));
  }

  void* handle_;
};

std::vector<Idle::Part> parts_of(const std::vector<Work>& work) {
  std::map<std::string, Idle::Part> by_name;
  for (const Work& item : work) {
    Idle::Part& part = by_name.try_emplace(item.name, Idle::Part{item.name, 0, 0}).first->second;
    part.seconds += static_cast<double>(item.end - item.begin) * 1e-9;
    ++part.count;
  }
  std::vector<Idle::Part> parts;
  for (auto& [name, part] : by_name) parts.push_back(std::move(part));
  std::sort(parts.begin(), parts.end(),
            [](const Idle::Part& a, const Idle::Part& b) { return a.seconds > b.seconds; });
  return parts;
}

/// Sorts the work, and joins what overlaps.
Idle idle_of(std::vector<Work>& work) {
  Idle idle;
  idle.records = static_cast<int64_t>(work.size());
  if (work.empty()) return idle;
  std::sort(work.begin(), work.end(),
            [](const Work& a, const Work& b) { return a.begin < b.begin; });
  uint64_t busy = 0, until = work.front().begin;
  const Work* last = &work.front();
  for (const Work& item : work) {
    if (item.begin > until) {
      idle.longest.push_back(
          {static_cast<double>(item.begin - until) * 1e-9, last->name, item.name});
      until = item.begin;
    }
    if (item.end <= until) continue;
    busy += item.end - until;
    until = item.end;
    last = &item;
  }
  idle.busy = static_cast<double>(busy) * 1e-9;
  idle.span = static_cast<double>(until - work.front().begin) * 1e-9;
  std::sort(idle.longest.begin(), idle.longest.end(),
            [](const Idle::Gap& a, const Idle::Gap& b) { return a.seconds > b.seconds; });
  idle.longest.resize(std::min<size_t>(idle.longest.size(), 8));
  idle.parts = parts_of(work);
  return idle;
}

}  // namespace

struct GapRecorder::Impl {
  Cupti cupti;
  std::mutex mutex;
  bool keeps = false;
  std::vector<Work> work;
  int64_t dropped = 0;

  void take(const CUpti_Activity& record) {
    if (!keeps) return;
    const auto add = [this](uint64_t begin, uint64_t end, std::string name) {
      if (begin == 0 || end < begin) {
        ++dropped;
      } else {
        work.push_back({begin, end, std::move(name)});
      }
    };
    if (record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL ||
        record.kind == CUPTI_ACTIVITY_KIND_KERNEL) {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
      add(kernel.start, kernel.end, kernel.name == nullptr ? "" : kernel.name);
    } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
      add(fill.start, fill.end, fmt::format("fill of {} bytes", fill.bytes));
    } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
      if (copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOD)
        add(copy.start, copy.end, fmt::format("copy of {} bytes", copy.bytes));
    }
  }

  void take(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid) {
    const std::lock_guard lock(mutex);
    CUpti_Activity* record = nullptr;
    while (cupti.next_record(buffer, valid, &record) == CUPTI_SUCCESS) take(*record);
    size_t lost = 0;
    if (cupti.dropped_records(context, stream, &lost) == CUPTI_SUCCESS && keeps)
      dropped += static_cast<int64_t>(lost);
  }

  static std::atomic<Impl*> only;

  static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
    *size = *buffer == nullptr ? 0 : kBufferBytes;
    *records = 0;
  }
  static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                                   size_t valid) {
    if (Impl* impl = only.load(); impl != nullptr && valid > 0)
      impl->take(context, stream, buffer, valid);
    std::free(buffer);
  }
};

std::atomic<GapRecorder::Impl*> GapRecorder::Impl::only{nullptr};

GapRecorder::GapRecorder() : impl_(std::make_unique<Impl>()) {
  Impl::only = impl_.get();
  const Cupti& cupti = impl_->cupti;
  cupti.check(cupti.register_callbacks(Impl::give_buffer, Impl::take_buffer),
              "cuptiActivityRegisterCallbacks");
  for (const CUpti_ActivityKind kind : kWatched)
    cupti.check(cupti.enable(kind), "cuptiActivityEnable");
}

GapRecorder::~GapRecorder() {
  for (const CUpti_ActivityKind kind : kWatched) impl_->cupti.disable(kind);
  impl_->cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  Impl::only = nullptr;
}

void GapRecorder::begin() {
  impl_->cupti.check(impl_->cupti.flush_all(0), "cuptiActivityFlushAll");
  const std::lock_guard lock(impl_->mutex);
  impl_->work.clear();
  impl_->dropped = 0;
  impl_->keeps = true;
}

Idle GapRecorder::end() {
  impl_->cupti.check(impl_->cupti.flush_all(0), "cuptiActivityFlushAll");
  const std::lock_guard lock(impl_->mutex);
  impl_->keeps = false;
  Idle idle = idle_of(impl_->work);
  idle.dropped = impl_->dropped;
  return idle;
}

}  // namespace tutti
