#include "program/program.h"

#include <iterator>
#include <sstream>

#include "base/error.h"

namespace hawser::program {

namespace {

constexpr const char* kOps[] = {"begin_step",
                                "load_batch",
                                "load_weights",
                                "gather",
                                "embed",
                                "forward",
                                "auxiliary_loss",
                                "loss",
                                "logits",
                                "loss_gradient",
                                "recompute",
                                "backward",
                                "backward_weight",
                                "embed_backward",
                                "send",
                                "receive",
                                "offload",
                                "load",
                                "reduce",
                                "reduce_replicas",
                                "reduce_tied",
                                "divide_copies",
                                "grad_norm_partial",
                                "gradient_norm",
                                "parameter_norms",
                                "update",
                                "optimizer_sum",
                                "optimizer_gather",
                                "optimizer_scatter",
                                "state_in",
                                "state_out",
                                "scale_update",
                                "quantize_weights",
                                "gather_updated",
                                "end_step"};
static_assert(std::size(kOps) == static_cast<std::size_t>(Op::end_step) + 1);
constexpr const char* kStreams[] = {"compute", "exchange",  "gather",   "reduce", "send",
                                    "receive", "auxiliary", "copy_out", "copy_in"};
static_assert(std::size(kStreams) == static_cast<std::size_t>(StreamId::count));
constexpr const char* kForms[] = {"rows", "transposed", "both"};
static_assert(std::size(kForms) == static_cast<std::size_t>(WeightForm::both) + 1);

}  // namespace

const char* to_string(Op op) {
  return kOps[static_cast<std::size_t>(op)];
}

const char* to_string(StreamId stream) {
  return kStreams[static_cast<std::size_t>(stream)];
}

const char* to_string(WeightForm form) {
  return kForms[static_cast<std::size_t>(form)];
}

int Program::add(Instruction instruction) {
  instruction.id = static_cast<int>(instructions.size());
  for (const int other : instruction.after)
    HAWSER_CHECK(other >= 0 && other < instruction.id, "instruction ", instruction.id, " waits for ", other);
  instructions.push_back(std::move(instruction));
  return instructions.back().id;
}

std::string Program::text() const {
  std::ostringstream out;
  for (const Instruction& instruction : instructions) {
    out << instruction.id << '\t' << to_string(instruction.stream) << '\t' << to_string(instruction.op);
    if (instruction.micro_batch >= 0) out << " mb" << instruction.micro_batch;
    if (instruction.layer >= 0) out << " layer " << instruction.layer;
    if (instruction.flat >= 0) out << " flat " << instruction.flat;
    if (instruction.boundary >= 0) out << ' ' << to_string(instruction.direction) << ' ' << instruction.boundary;
    if (instruction.phase > 0) out << " phase " << instruction.phase;
    if (instruction.weights_only) out << " weights";
    if (instruction.form != WeightForm::rows) out << ' ' << to_string(instruction.form);
    if (!instruction.after.empty()) {
      out << "\tafter";
      for (const int other : instruction.after) out << ' ' << other;
    }
    out << '\n';
  }
  return out.str();
}

}  // namespace hawser::program
