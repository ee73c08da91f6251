// The one place where exceptions become lines and exit codes.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace hawser::cli {

// Prints `hawser: LINE` for each line of the error to standard error, and returns its exit code: Error::code(),
// ExitCode::does_not_fit where the system refused memory or a thread, else ExitCode::internal. A body with other ranks
// waiting for it uses it before its World is gone:
//   catch (const std::exception& error) { world.abort(cli::report_error(error)); }
int report_error(const std::exception& error);

// The line about results that did not reach standard output; `reason`: an errno, or 0.
std::string undelivered(int reason);

// Prints `hawser: PREFIX LINE` for each line to standard error: what the user should know and need not act on.
void print(const std::string& prefix, const std::string& lines);

// For main: what ends the process without coming back to guarded() ends it with one line and its code too. That is an
// error that nobody could catch (in a thread's own function; in a destructor, which JSON values have one of that needs
// memory), and, where memory is short, a library that takes no notice of being refused some, aborts or exits. What is
// needed to throw an error is loaded while there is memory for it, and no line takes any.
void expect_to_run_out_of_memory();

// Runs `body`; an exception becomes report_error's code. Results that did not reach standard output are an error of
// their own: a body that was done otherwise ends with ExitCode::internal then.
int guarded(const std::function<int()>& body);

}  // namespace hawser::cli
