// The rules of config/check/faults.h, section by section; all faults end up in one list.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "config/job.h"
#include "config/model_rules.h"

namespace tutti {

/// What a hint at this job must add: " without layout.shards and layout.depth", the keys that are
/// set and would say nothing to it; "" where there are none.
std::string without_idle(const Job& job);

/// The transports that connect such ranks, as a hint: "shm" or "tcp".
std::string connecting(Workers workers);

class JobCheck {
 public:
  JobCheck(const Job& job, const ModelRules& rules) : job_(job), rules_(rules) {}

  void values();
  void model();
  void loss();
  void data();
  void train();
  void numerics(const Machine& machine);
  void device(const Machine& machine);
  void layout();

  std::vector<std::string> faults;

 private:
  /// A fault that names its keys; the first that came from a line of a file gives the place.
  void fault(std::initializer_list<const char*> names, const std::string& text);
  void missing();  // properties that the job asks for and the model does not have
  void norm();
  void split();
  void text();
  void images();
  void columns();
  void precision(const Machine& machine);
  void model_columns();
  void mesh();
  void uneven_mesh();
  void with_mesh();
  void refuse_together(const char* asked, const char* why, const char* works,
                       std::initializer_list<const char*> others);
  void idle_keys();
  const Job& job_;
  const ModelRules& rules_;
};

}  // namespace tutti
