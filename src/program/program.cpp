#include "program/program.h"

#include <sstream>

#include "base/error.h"

namespace hawser::program {

const char* to_string(Op op) {
  switch (op) {
    case Op::begin_step:
      return "begin_step";
    case Op::load_batch:
      return "load_batch";
    case Op::load_weights:
      return "load_weights";
    case Op::gather:
      return "gather";
    case Op::embed:
      return "embed";
    case Op::forward:
      return "forward";
    case Op::auxiliary_loss:
      return "auxiliary_loss";
    case Op::loss:
      return "loss";
    case Op::logits:
      return "logits";
    case Op::loss_gradient:
      return "loss_gradient";
    case Op::recompute:
      return "recompute";
    case Op::backward:
      return "backward";
    case Op::backward_weight:
      return "backward_weight";
    case Op::embed_backward:
      return "embed_backward";
    case Op::reduce:
      return "reduce";
    case Op::send:
      return "send";
    case Op::receive:
      return "receive";
    case Op::offload:
      return "offload";
    case Op::load:
      return "load";
    case Op::reduce_replicas:
      return "reduce_replicas";
    case Op::reduce_tied:
      return "reduce_tied";
    case Op::divide_copies:
      return "divide_copies";
    case Op::grad_norm_partial:
      return "grad_norm_partial";
    case Op::gradient_norm:
      return "gradient_norm";
    case Op::parameter_norms:
      return "parameter_norms";
    case Op::scale_update:
      return "scale_update";
    case Op::quantize_weights:
      return "quantize_weights";
    case Op::gather_updated:
      return "gather_updated";
    case Op::update:
      return "update";
    case Op::optimizer_sum:
      return "optimizer_sum";
    case Op::optimizer_gather:
      return "optimizer_gather";
    case Op::optimizer_scatter:
      return "optimizer_scatter";
    case Op::state_in:
      return "state_in";
    case Op::state_out:
      return "state_out";
    case Op::gradient_out:
      return "gradient_out";
    case Op::scalars_out:
      return "scalars_out";
    case Op::weights_in:
      return "weights_in";
    case Op::end_step:
      return "end_step";
  }
  return "?";
}

const char* to_string(StreamId stream) {
  switch (stream) {
    case StreamId::compute:
      return "compute";
    case StreamId::exchange:
      return "exchange";
    case StreamId::gather:
      return "gather";
    case StreamId::reduce:
      return "reduce";
    case StreamId::send:
      return "send";
    case StreamId::receive:
      return "receive";
    case StreamId::auxiliary:
      return "auxiliary";
    case StreamId::copy_out:
      return "copy_out";
    case StreamId::copy_in:
      return "copy_in";
    case StreamId::host:
      return "host";
    case StreamId::count:
      break;
  }
  return "?";
}

const char* to_string(WeightForm form) {
  switch (form) {
    case WeightForm::rows:
      return "rows";
    case WeightForm::transposed:
      return "transposed";
    case WeightForm::both:
      return "both";
  }
  return "?";
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
