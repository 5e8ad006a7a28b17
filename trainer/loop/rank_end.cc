#include "trainer/loop/rank_end.h"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "trainer/loop/exception_error.h"
#include "trainer/loop/signals.h"

namespace sortie::trainer {
namespace {

constexpr std::size_t kReserve = 1u << 20;
constexpr std::chrono::seconds kPeersFailTogether{1};
/// Time for rank 0 to report a shared error: a silent rank must not end the job before that.
constexpr std::chrono::seconds kRank0Speaks{20};
constexpr std::chrono::milliseconds kAfterRank0{100};

std::atomic<RankEnd*> current{nullptr};

Error error_of(const std::exception_ptr& exception, std::int64_t planned_on_gpu) {
  const std::string less =
      "lower topology.micro_batch_size, set topology.activation_checkpointing_type = "
      "\"every_layer\", ";
  return error_of_exception(
      exception,
      {.memory = less + "or put fewer ranks on the host",
       .gpu_memory = less + "share weights and the optimizer's state out with "
                            "topology.parameter_sharding, or use more ranks for each model",
       .gpu_need = planned_on_gpu > 0
                       ? fmt::format(" (planned: {} MiB in all, see `sortie-train plan`)",
                                     planned_on_gpu >> 20)
                       : "",
       .threads = "put fewer ranks on the host"});
}

}  // namespace

RankEnd::RankEnd() : communicator_(make_single_communicator()), reserve_(new std::byte[kReserve]) {
  current = this;
  old_terminate_ = std::set_terminate(on_terminate);
}

RankEnd::~RankEnd() {
  std::set_terminate(old_terminate_);
  current = nullptr;
}

void RankEnd::on_terminate() {
  RankEnd* end = current.exchange(nullptr);
  const std::exception_ptr exception = std::current_exception();
  if (!exception) std::abort();
  if (end == nullptr) {
    // Another thread got here first and is about to end the process.
    constexpr unsigned kPatienceSeconds = 10;
    ::sleep(kPatienceSeconds);
    std::abort();
  }
  end->reserve_.reset();
  end->leave(error_of(exception, end->planned_on_gpu_));
}

Result<> RankEnd::guard(const std::function<Result<>()>& body) {
  std::exception_ptr exception;
  try {
    return body();
  } catch (...) {
    exception = std::current_exception();
  }
  reserve_.reset();
  Error error = error_of(exception, planned_on_gpu_);
  if (communicator_->size() > 1) {
    const std::optional<int> code =
        error.code == ErrorCode::lost ? save_last(error) : std::optional<int>();
    leave(error, code);
  }
  return std::unexpected(std::move(error));
}

int RankEnd::exit_code_of(const std::function<Result<>()>& body) {
  const Result<> outcome = guard(body);
  if (outcome) return kExitOk;
  const bool silent = shared_ && rank_.rank != 0;
  if (!silent) report(outcome.error());
  // Only SIGTERM interrupts training, and then there is a checkpoint.
  const int code = outcome.error().code == ErrorCode::interrupted
                       ? kExitPreempted
                       : exit_code_for(outcome.error().code);
  if (communicator_->meet(silent ? kRank0Speaks : kPeersFailTogether)) {
    if (!silent) return code;
    // Rank 0 ends first: the launcher shows the last output of the rank that failed first.
    // Before the ranks are connected, the launcher ends the others with rank 0.
    const bool apart = communicator_->size() < rank_.world_size;
    communicator_ = make_single_communicator();
    if (apart)
      std::this_thread::sleep_for(kRank0Speaks);
    else
      std::this_thread::sleep_for(kAfterRank0);
    return code;
  }
  if (rank_.run_id.empty()) communicator_->abort(code);
  std::_Exit(code);
}

void RankEnd::report(const Error& error) {
  // Sortie labels each line with its rank; other launchers do not.
  const std::string where = rank_.world_size > 1 && rank_.run_id.empty()
                                ? fmt::format("rank {} on {}: ", rank_.rank, rank_.host)
                                : "";
  std::fflush(stdout);
  print_stderr("sortie-train: {}{}\n", where, error.message);
  std::fflush(stderr);
  // Without a socket events are lines on stdout, which would repeat this.
  if (!events_ || rank_.socket_path.empty()) return;
  events_->send({{"type", "error"},
                 {"rank", rank_.rank},
                 {"host", rank_.host},
                 {"code", error_code_name(error.code)},
                 {"text", error.message}});
  events_->flush();
}

std::optional<int> RankEnd::save_last(Error& error) {
  if (!last_save_) return std::nullopt;
  const std::function<LastSave()> save = std::exchange(last_save_, nullptr);
  LastSave last;
  try {
    last = save();
  } catch (const std::exception& problem) {
    last.text = fmt::format("; its state could not be saved: {}", problem.what());
  }
  error.message += last.text;
  if (last.asked && !last.saved) SaveSignals::die();
  return last.asked ? std::optional<int>(kExitPreempted) : std::nullopt;
}

void RankEnd::leave(const Error& error, std::optional<int> code) {
  report(error);
  if (!code) code = exit_code_for(error.code);
  if (rank_.run_id.empty()) communicator_->abort(*code);
  std::_Exit(*code);
}

}  // namespace sortie::trainer
