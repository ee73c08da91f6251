#include "step/step_record.h"

namespace hawser::step {

const char* to_string(Skip skip) {
  switch (skip) {
    case Skip::none:
      return "none";
    case Skip::overflow:
      return "overflow";
    case Skip::no_target:
      return "no target";
    case Skip::saturated:
      return "saturated";
    case Skip::replay:
      return "replay";
    case Skip::refused:
      return "refused";
  }
  return "?";
}

}  // namespace hawser::step
