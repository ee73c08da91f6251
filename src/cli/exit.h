// Exceptions to error lines and exit codes.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace hawser::cli {

// Prints `hawser: LINE` for each line of the error to standard error, and returns its exit code: Error::code(),
// ExitCode::does_not_fit if memory or a thread could not be allocated, else ExitCode::internal. A rank's body calls it
// before its World is destroyed:
//   catch (const std::exception& error) { world.abort(cli::report_error(error)); }
int report_error(const std::exception& error);

// The error line for results that did not reach standard output; `reason`: an errno, or 0.
std::string undelivered(int reason);

// Prints `hawser: PREFIX LINE` for each line to standard error. For notes and warnings.
void print(const std::string& prefix, const std::string& lines);

// A line without `hawser: `, for a command's result.
void print_plain(const std::string& line);

// Called by main, first. Opens closed standard streams, so that no file of the program takes their number and what is
// printed lands in it. Reading or writing them fails as before.
void open_standard_streams();

// Called by main. Makes ends of the process that bypass guarded() print one line and return its code too: exceptions
// that cannot be caught (in a thread's function, or in a destructor, such as that of JSON values, which allocates), and
// libraries that crash, abort or exit when an allocation fails. Loads what throwing needs while there is memory;
// printing the line allocates nothing.
void expect_to_run_out_of_memory();

// Called by main. A file that is cut short while it is mapped (io::mapped_path) ends the process with one line and
// ExitCode::bad_input; other causes of SIGBUS end it as before.
void expect_files_cut_short();

// Runs `body` and returns its code, or report_error's for an exception. If results did not reach standard output,
// prints that error, and returns ExitCode::internal if the code was 0.
int guarded(const std::function<int()>& body);

}  // namespace hawser::cli
