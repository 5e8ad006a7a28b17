#include "common/base/exit_code.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "common/base/check.h"
#include "common/base/process_status.h"

namespace sortie {
namespace {

constexpr int kSignalBase = 128;
constexpr int kLastSignal = 64;

// clang-format off
constexpr ExitCode kExitCodes[] = {
    {kExitOk, "ok", "All went well; of a run: every rank exited with 0", "Nothing"},
    {kExitFailed, "failed", "A failure that has no other code: a timeout, a protocol error, training that diverged; or a rank that itself exited with 1",
     "Read the message; a rank's last lines on stderr follow it"},
    {kExitUsage, "usage", "The command line or the config is wrong. `sortie` finds most of this before it contacts a host; a rank of `sortie-train` may report it, too", "Correct what the message names; `sortie VERB --help` starts with examples"},
    {kExitPreflight, "preflight", "A host lacks what the job needs: the program, the work folder, libpmix",
     "Install it there or correct the path; work_dir and PATH are those of the host"},
    {kExitUnreachable, "unreachable", "A host could not be reached, or the runner could not be started on it; no rank was started",
     "The message names the stage; look it up: `sortie explain auth`. See whether `ssh HOST true` works"},
    {kExitLost, "lost", "A host, its connection or its runner went away while ranks ran, or the supervisor of a run did; ranks end by themselves",
     "See whether the host is up (out of memory? rebooted?); the same command resumes from the last checkpoint"},
    {kExitHang, "hang", "Ranks stopped making progress (`[watchdog]`) and were killed", "The message names the rank that the others waited for; the stacks of all are in the run folder. See that host, and the network between the hosts"},
    {kExitAdopted, "adopted", "The exit code of a supervisor that was stopped or disconnected: another supervisor has taken over its run", "`sortie attach RUN` shows it"},
    {kExitCheckpoint, "checkpoint", "There is no usable checkpoint", "See `sortie-train checkpoint ls` and `checkpoint verify`"},
    {kExitData, "data", "A file could not be read or written: token files, the run folder, a full disk", "The message names the file and why"},
    {kExitNoProgress, "no_progress", "Several attempts in a row committed no newer step (recovery.no_progress_limit), so the run was not restarted again",
     "The message has the first cause of each; correct it before you start the job again. `sortie report RUN` shows all attempts"},
    {kExitPreempted, "preempted", "sortie-train received SIGTERM and saved a checkpoint, or too few sites were left (outer.min_sites), or two sites could not reach each other: the run can resume",
     "The same command resumes from the last checkpoint; after SIGTERM, with [recovery], the run resumes automatically"},
    {kExitTimedOut, "timed_out", "A time limit has passed: the code that timeout(1) uses too", "Raise the limit, or find what is slow"},
    {kExitNotRunnable, "not_runnable", "A program was found but could not be run: no permission to, or of another format", "chmod +x it; see whether it is built for that host"},
    {kExitNotFound, "not_found", "A program was not found", "Use its full path, or extend PATH with runner.env on the hosts"},
};

constexpr ErrorClass kErrorClasses[] = {
    {ErrorCode::usage, kExitUsage, "The command line is wrong", "Correct it; --help starts with examples"},
    {ErrorCode::config, kExitUsage, "The config has a bad key, value or combination", "Correct what the message names; all problems are listed at once"},
    {ErrorCode::not_found, kExitData, "A file or name that should exist does not", "Correct the path or make the file"},
    {ErrorCode::io, kExitData, "The system refused a read, a write or the like", "The message has the reason: free space, permissions, a broken disk"},
    {ErrorCode::resolve, kExitUnreachable, "The name of a host does not resolve", "Correct the name, or give it a HostName in ~/.ssh/config"},
    {ErrorCode::connect, kExitUnreachable, "The TCP connection was refused, timed out, or found no route", "See that the host is up, sshd runs, the port is right, and no firewall is between"},
    {ErrorCode::handshake, kExitUnreachable, "The server at that address and port does not speak SSH, or the handshake failed", "See that the port is sshd's; sshd drops connections when too many come at once (MaxStartups): lower runner.ssh.fanout"},
    {ErrorCode::host_key, kExitUnreachable, "The host's key is not known, or is not the known one", "Unknown: connect once with ssh, or set runner.ssh.accept_new. Changed: find out why before anything else"},
    {ErrorCode::auth, kExitUnreachable, "No way to sign in was accepted", "See that your key is in the agent or named by identity_file, and in authorized_keys of the host; see the user name"},
    {ErrorCode::channel, kExitUnreachable, "Signed in, but no command could be started", "See MaxSessions, ForceCommand and the login shell on the host"},
    {ErrorCode::runner, kExitUnreachable, "The runner could not be installed or started, or it broke off", "The message has the host's output: a home folder that is full or noexec, another architecture"},
    {ErrorCode::protocol, kExitFailed, "A peer violated the protocol", "Use one build of Sortie everywhere; else it is a bug or an attack"},
    {ErrorCode::timeout, kExitFailed, "A deadline passed", "The message names its key, such as runner.startup_timeout; find what is slow or raise it"},
    {ErrorCode::lost, kExitLost, "A peer that had answered went away", "See whether the host is up and the network holds"},
    {ErrorCode::spawn, kExitPreflight, "A rank could not be started", "See that the program is at that path on that host and may be run"},
    {ErrorCode::rank_failed, kExitFailed, "A rank failed; the run exits with the rank's own code", "Its last lines on stderr are in the report, all of them in the run folder"},
    {ErrorCode::unsupported, kExitPreflight, "This build or that host can not do it", "The message says what to install or to set"},
    {ErrorCode::data, kExitData, "Token files, the tokenizer or other training data are wrong", "See `sortie-train data inspect`"},
    {ErrorCode::checkpoint, kExitCheckpoint, "No usable checkpoint, or a broken one", "See `sortie-train checkpoint verify`"},
    {ErrorCode::diverged, kExitFailed, "Training can not continue: too many steps in a row had gradients that are not finite", "Lower the learning rate, see the data; trainer.max_consecutive_skips is the limit"},
    {ErrorCode::interrupted, kExitInterrupted, "Ctrl-C, TERM or HUP", "Nothing; the exit code is 128 + the number of the signal"},
    {ErrorCode::internal, kExitFailed, "A library failed in a way that has no class", "Report it, with the message"},
};

struct SignalText {
  int number;
  std::string_view meaning, advice;
};
constexpr SignalText kSignals[] = {
    {1, "the terminal or the connection to it has gone", "Start it with nohup, in tmux, or detached"},
    {2, "Ctrl-C", "Nothing"},
    {3, "Ctrl-\\", "Nothing"},
    {4, "an instruction that the CPU does not have", "See whether the program is built for the CPU of that host"},
    {5, "a trap that no debugger took", "Look into the core file"},
    {6, "abort(): the program gave up by itself, often on a failed assertion", "Read its last lines on stderr"},
    {7, "a memory access that failed, such as in a mapped file that was truncated, or with /dev/shm full", "See free space of /dev/shm and of the files it maps"},
    {8, "a division by zero", "Look into the core file"},
    {9, "killed: by the out-of-memory killer, an administrator, a batch system, or Sortie after the grace", "See whether the report says `killed for lack of memory`; else dmesg on the host"},
    {11, "an invalid memory access", "Look into the core file; see limits of the stack"},
    {13, "a write to a pipe that has no reader", "See what ended before it"},
    {15, "asked to end: by kill, by a batch system, or by Sortie when the run stops", "See who sent it; `stopped` ranks are consequences, not causes"},
    {24, "the limit of CPU time", "Raise `ulimit -t`"},
    {25, "the limit of file size", "Raise `ulimit -f`"},
    {31, "a system call that a sandbox forbids", "See the seccomp profile of the container"},
};
// clang-format on

constexpr bool classes_are_in_order() {
  for (std::size_t i = 0; i < std::size(kErrorClasses); ++i)
    if (static_cast<std::size_t>(kErrorClasses[i].code) != i) return false;
  return std::size(kErrorClasses) == static_cast<std::size_t>(ErrorCode::internal) + 1;
}
static_assert(classes_are_in_order());

std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != text.npos; at += 2) text.insert(at, "\\");
  return text;
}

}  // namespace

std::span<const ExitCode> exit_codes() {
  return kExitCodes;
}

std::span<const ErrorClass> error_classes() {
  return kErrorClasses;
}

int exit_code_for(ErrorCode code) {
  const auto index = static_cast<std::size_t>(code);
  SORTIE_CHECK(index < std::size(kErrorClasses), "error code {}", index);
  return kErrorClasses[index].exit_code;
}

ExplainedCode explain_exit_code(int code) {
  const auto* known = std::ranges::find(kExitCodes, code, &ExitCode::code);
  if (known != std::end(kExitCodes))
    return {std::string(known->name), std::string(known->meaning), std::string(known->advice)};
  const int number = code - kSignalBase;
  if (number < 1 || number > kLastSignal)
    return {"own", "A program's own code; Sortie passes on that of the first rank that failed",
            "See the documentation of the program, and its last lines on stderr"};
  const auto* text = std::ranges::find(kSignals, number, &SignalText::number);
  const std::string name = signal_name(number);
  if (text == std::end(kSignals))
    return {name, fmt::format("Ended by signal {} ({})", number, name), "See who sent it"};
  return {name, fmt::format("Ended by signal {} ({}): {}", number, name, text->meaning),
          std::string(text->advice)};
}

std::string exit_codes_markdown() {
  std::string out = R"(# Exit codes

Generated by `sortie explain --markdown > docs/exit_codes.md`; do not edit.

`sortie explain CODE` prints the same for one code, signal or stage. A run exits with the code of its
first cause; later failures are consequences. A rank may also exit with one of the small codes itself:
the report on the terminal and `events.jsonl` show where the code comes from.

)";
  out += fmt::format("The exit codes of `sortie check` are its verdict: {}.\n", kCheckExitCodes);
  out += R"(
| code | name | meaning | what to do |
|---|---|---|---|
)";
  const auto row = [&out](int code) {
    const ExplainedCode text = explain_exit_code(code);
    out += fmt::format("| {} | {} | {} | {} |\n", code, text.name, cell(text.meaning),
                       cell(text.advice));
  };
  for (const ExitCode& entry : kExitCodes) row(entry.code);
  out += "| 128 + N | | Ended by signal N; `MPI_Abort(N)` gives N itself | see below |\n";
  for (const SignalText& entry : kSignals) row(kSignalBase + entry.number);
  out += R"(
## Failure classes

A message about a host has the form `HOST: CLASS: what failed: why; what to do`. The classes `resolve` to `runner` are
the stages of a connection, in order.

| class | exit code | meaning | what to do |
|---|---|---|---|
)";
  for (const ErrorClass& entry : kErrorClasses)
    out += fmt::format("| `{}` | {} | {} | {} |\n", error_code_name(entry.code), entry.exit_code,
                       entry.meaning, entry.advice);
  return out;
}

}  // namespace sortie
