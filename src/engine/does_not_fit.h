// `DoesNotFit`: a session needs more memory than a rank may use. Ranks compare what each needs before any of them
// reserves memory, and all of them throw it at the same point. So a caller may catch it and continue, on every rank
// alike. Any other Error(does_not_fit), such as that of a failed allocation, may be thrown on one rank alone.
#pragma once

#include "base/error.h"

namespace hawser::engine {

class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(const std::string& message) : Error(ExitCode::does_not_fit, message) {}
};

}  // namespace hawser::engine
