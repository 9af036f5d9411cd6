// Adds to a model what a job names by file: the loss becomes one that also listens to a teacher,
// and parameters start with given values.
#include "infer/prepare.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "config/job_parts.h"
#include "infer/trained.h"
#include "model/core/wiring.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

/// A teacher answers on the CPU in float32, wherever its pupil trains.
NumericsConfig host_numerics(NumericsConfig numerics) {
  numerics.device = DeviceKind::kCpu;
  numerics.precision = Precision::kFloat32;
  return numerics;
}

/// The teacher's logits for the data. Data on a device comes to the host and the logits go back,
/// which waits for the device, so that a step with a teacher is not captured.
at::Tensor answer_of(Trained& teacher, Tensors data) {
  if (data.front().is_cpu()) return teacher.output(data);
  std::vector<at::Tensor> on_host;
  for (const at::Tensor& tensor : data) on_host.push_back(tensor.to(at::kCPU));
  return teacher.output(on_host).to(data.front().device());
}

/// The last segment, which is the loss, becomes one that also listens to the teacher.
void add_teacher(const Job& job, Model& model, const MakeModel& make_model) {
  auto teacher =
      std::make_shared<Trained>(job.loss.teacher, job.train.micro_batch_size,
                                host_numerics(job.numerics), make_model, job.loss.teacher_step);
  const std::vector<Border>& reads = teacher->model().data;
  for (size_t i = 0; i < reads.size(); ++i) {
    if (i >= model.data.size() || reads[i].dims != model.data[i].dims ||
        reads[i].type != model.data[i].type)
      throw Error(fmt::format("loss.teacher = \"{}\": its model reads other data than this job's",
                              job.loss.teacher));
  }

  // The teacher must answer in the shape of this model's output.
  auto& segments = model.blocks.back().segments;
  const std::vector<Border> inputs = segments.back()->inputs();
  const auto output = std::find_if(inputs.begin(), inputs.end(),
                                   [&](const Border& b) { return b.name == model.output; });
  TUTTI_CHECK(output != inputs.end(), "the last segment does not read {}", model.output);
  const std::vector<Border> answers = teacher->model().blocks.back().segments.back()->inputs();
  const auto answer = std::find_if(answers.begin(), answers.end(), [&](const Border& b) {
    return b.name == teacher->model().output;
  });
  if (answer == answers.end() || answer->dims != output->dims)
    throw Error(fmt::format("loss.teacher = \"{}\": its model answers {}, this one {}",
                            job.loss.teacher,
                            answer == answers.end() ? teacher->model().output : to_string(*answer),
                            to_string(*output)));
  segments.back() = distill_segment(job, *output, model.data,
                                    [teacher](Tensors data) { return answer_of(*teacher, data); });
}

}  // namespace

Model prepared_model(const Job& job, const MakeModel& make_model, bool fresh) {
  Model model = make_model(job);
  if (fresh && !job.model.init_from.empty())
    start_from(model, job.model.init_from, job.model.init_only);
  if (loss_part(job).taught) add_teacher(job, model, make_model);
  return model;
}

}  // namespace tutti
