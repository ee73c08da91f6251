#include "profile/work_family.h"

#include <string_view>

namespace hawser::profile {

std::string family_of(const OpRecord& record) {
  switch (record.kind) {
    case OpKind::gemm:
    case OpKind::gemm_fp8:
    case OpKind::gemm_fp8_block:
      return "gemm";
    case OpKind::attention_forward:
    case OpKind::attention_backward:
    case OpKind::attention_tiled_forward:
    case OpKind::attention_tiled_backward:
    case OpKind::attention_plain_forward:
    case OpKind::attention_plain_backward:
    case OpKind::attention_combine:
      return "attention";
    case OpKind::loss:
      return "head and loss";
    case OpKind::norm:
      return "norm";
    case OpKind::activation:
      return "activation";
    case OpKind::rope:
      return "rope";
    case OpKind::embedding:
      return "embedding";
    case OpKind::optimizer:
      return "adamw";
    case OpKind::gradient_norm:
      return "gradient norm";
    case OpKind::elementwise:
      return std::string_view(record.name) == "dequantize_nf4" ? "dequantization" : "residual and bias";
    case OpKind::copy:
      return "copies";
    case OpKind::communication:
      return "communication";
    case OpKind::random:
    case OpKind::transfer:
    case OpKind::host:
    case OpKind::keep:
    case OpKind::none:
      return record.name;
  }
  return record.name;
}

}  // namespace hawser::profile
