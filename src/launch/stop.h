// Interruption of a run by signals, such as Ctrl-C.
//
//   end_when_interrupted();   // in every command, first
//   catch_stop_signals();     // in a command that saves
//   comm::World world;
//   note_started();
//   while (!stop_requested()) train_one_step();
//   save(), print_last_message(print);
//
// In a command that saves, the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 requests to save and stop; a second SIGINT,
// SIGTERM or SIGHUP exits at once. Any other command exits at once on the first. Both print a line and return
// ExitCode::interrupted; an unfinished result file is removed or kept as PATH.part (io/result_file.h). SIGHUP stays
// ignored if it is ignored at the start (nohup).
//
// In a rank of the local launcher, the launcher handles the signals (local.h): it requests the stop through shared
// memory (stop_page.h) and kills the ranks itself. In a command that saves, SIGUSR1, SIGTERM, SIGINT and SIGHUP sent to
// a rank also request a stop: `systemctl stop`, for one, sends SIGTERM to all processes of a service at once.
#pragma once

#include <functional>

namespace hawser {

// Messages, also printed by the launcher.
inline constexpr char kSavingLine[] = "saving and stopping; interrupt again to stop at once";
inline constexpr char kEndedLine[] = "stopped at once; steps since the last checkpoint are lost";
inline constexpr char kEndedAnsweringLine[] = "stopped at once; answers so far, if any, are in the .part file";
inline constexpr char kInterruptedLine[] = "interrupted";

void end_when_interrupted();

// Call once MPI is started: the launcher waits for it in all of its ranks, with a time limit (local.h).
void note_started();
// Call when this rank's work has ended without an error. The launcher counts the ranks: an mpirun, or a script of this
// name, may report success for ranks that failed or never ran.
void note_ended();
// Call before this rank ends the run, or itself, with an exit code: the launcher reads it here and not from mpirun's
// words. Of several calls on all ranks, the first counts.
void note_failed(int code);

// Call when this rank has printed why the run ends, and other ranks are about to end: a signal by which their launcher
// ends this one prints nothing.
void keep_quiet_when_stopped();

void catch_stop_signals(const char* ended = kEndedLine);  // `ended`: message of the second signal; a string literal
bool stop_requested();
// Call when all ranks have saved and stopped: calls `print`, with which the first rank reports it. A signal during the
// call may end the process afterwards, but nothing is lost and nothing else is printed. If a signal has already ended
// the run, `print` is not called: exactly one message is printed.
void print_last_message(const std::function<void()>& print);

}  // namespace hawser
