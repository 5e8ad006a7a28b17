// The class of a first cause, and the host that it blames.
#include <doctest/doctest.h>

#include <csignal>
#include <set>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {
namespace {

Cause cause_of(Cause::What what, int code = 0) {
  Cause cause;
  cause.what = what;
  cause.host = "h3";
  cause.code = code;
  return cause;
}

TEST_CASE("every kind of first cause has its class and its blame") {
  using What = Cause::What;
  struct Row {
    What what;
    int code;
    FailureClass failure;
    bool blames;
  };
  for (const Row& row : {Row{What::exit, 1, FailureClass::app, false},
                         Row{What::exit, 75, FailureClass::preempted, false},
                         Row{What::signal, SIGKILL, FailureClass::software, true},
                         Row{What::signal, SIGBUS, FailureClass::software, true},
                         Row{What::signal, SIGSEGV, FailureClass::software, false},
                         Row{What::signal, SIGABRT, FailureClass::software, false},
                         Row{What::signal, SIGPIPE, FailureClass::software, false},
                         Row{What::signal, SIGTERM, FailureClass::preempted, false},
                         Row{What::signal, SIGHUP, FailureClass::preempted, false},
                         Row{What::oom, SIGKILL, FailureClass::oom, false},
                         Row{What::mpi_abort, 3, FailureClass::app, false},
                         Row{What::no_finalize, 0, FailureClass::app, false},
                         Row{What::spawn, 0, FailureClass::setup, true},
                         Row{What::lost, 0, FailureClass::hardware, true},
                         Row{What::hang, 0, FailureClass::hang, true},
                         Row{What::timeout, 0, FailureClass::software, false},
                         Row{What::runner, 0, FailureClass::software, true},
                         Row{What::unreachable, 0, FailureClass::setup, true},
                         Row{What::interrupted, SIGINT, FailureClass::user, false}}) {
    CAPTURE(cause_name(row.what));
    CAPTURE(row.code);
    const Cause cause = cause_of(row.what, row.code);
    CHECK(classify(cause) == row.failure);
    CHECK(blamed_host(cause) == (row.blames ? "h3" : ""));
  }
}

TEST_CASE("a rank that exits because a process of it was killed for lack of memory") {
  Cause cause = cause_of(Cause::What::exit, 1);
  cause.oom = 1;
  CHECK(classify(cause) == FailureClass::oom);
  for (const auto& [signal, failure] :
       {std::pair{SIGABRT, FailureClass::oom}, std::pair{SIGSEGV, FailureClass::software},
        std::pair{SIGBUS, FailureClass::software}, std::pair{SIGTERM, FailureClass::preempted}}) {
    Cause signaled = cause_of(Cause::What::signal, signal);
    signaled.oom = 1;
    CAPTURE(signal);
    CHECK(classify(signaled) == failure);
  }
  cause.oom = 2;  // a kill elsewhere on the host does not explain this rank's exit
  CHECK(classify(cause) == FailureClass::app);
}

TEST_CASE("an end of an attempt has what its first cause says") {
  Cause cause = cause_of(Cause::What::signal, SIGKILL);
  cause.rank = 5;
  cause.pid = 4242;
  cause.exit_code = 137;
  cause.last_lines = {"last words"};
  const AttemptEnd end = end_of(2, cause);
  CHECK(end.attempt == 2);
  CHECK(end.exit_code == 137);
  CHECK(end.rank == 5);
  CHECK(end.rank_code == 137);
  CHECK(end.blamed_host == "h3");
  CHECK(end.cause == "rank 5 on h3 (pid 4242) ended by signal 9 (SIGKILL)");
  // The code of a lost host is Sortie's own. recovery.stop_exit_codes applies only to ranks.
  Cause lost = cause_of(Cause::What::lost);
  lost.exit_code = 5;
  CHECK_FALSE(end_of(1, lost).rank_code);
}

TEST_CASE("names and texts of classes: all of them, none twice") {
  std::set<std::string_view> meanings;
  for (const FailureClassText& text : failure_class_texts()) {
    CHECK(failure_class_of(failure_class_name(text.failure)) == text.failure);
    CHECK(meanings.insert(text.meaning).second);
    CHECK_FALSE(text.advice.empty());
    CHECK_FALSE(text.meaning.ends_with("."));
  }
  CHECK(meanings.size() == kFailureClassNames.size());
  CHECK_FALSE(failure_class_of("cosmic"));
}

}  // namespace
}  // namespace sortie::launcher
