// What Ctrl-C asks of a run.
//
//   end_when_interrupted();   // every command, first of all
//   catch_stop_signals();     // a command that saves
//   while (!stop_requested()) train_one_step();
//   save(), say_last_word(say_so);
//
// A command that saves is asked to save and stop by the first SIGINT, SIGTERM, SIGHUP or SIGUSR1; a second SIGINT,
// SIGTERM or SIGHUP ends it at once. Any other command ends at once with the first. Both say so in a line, and both
// return ExitCode::interrupted; a result's file that was begun is dropped (base/result_file.h). What is ignored from
// the start stays ignored where it is SIGHUP: nohup.
//
// In a rank that our launcher started the launcher does all that (local.h): it asks through memory they share
// (stop_page.h), and ends its ranks itself. SIGUSR1 sent to a rank asks as well, SIGTERM ends it.
#pragma once

#include <functional>

namespace hawser {

// What is said; the launcher says the same.
inline constexpr char kSavingLine[] = "saving and stopping; once more ends the run at once";
inline constexpr char kEndedLine[] = "ended at once; what no checkpoint holds is lost";
inline constexpr char kEndedAnsweringLine[] = "ended at once; answers so far, if any, are in the .part file";
inline constexpr char kInterruptedLine[] = "interrupted";

void end_when_interrupted();

void catch_stop_signals(const char* ended = kEndedLine);  // `ended`: said by the second; a literal
bool stop_requested();
// All ranks have done what was asked: calls `say`, by which the first rank tells it. A signal that comes meanwhile may
// end the process thereafter, but nothing is lost by that and nothing more is said. Where a signal has ended the run
// before, `say` is not called: one of both is heard, never both and never none.
void print_last_message(const std::function<void()>& print);

}  // namespace hawser
