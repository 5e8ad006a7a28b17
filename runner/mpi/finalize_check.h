// Whether ranks that exited with 0 had finalized MPI, as sortie-pmix knows it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <set>

#include "common/asio/alarm.h"
#include "common/wire/message.h"
#include "runner/mpi/pmix_helper.h"

namespace sortie::runner {

class FinalizeCheck {
 public:
  /// Called once for each rank that is asked about; `not_finalized` is false if there is no answer.
  using Answer = std::function<void(std::uint32_t rank, bool not_finalized)>;

  FinalizeCheck(const boost::asio::any_io_executor& executor, Answer answer)
      : answer_(std::move(answer)), limit_(executor) {}

  /// Asks `helper`, which must be running, about a rank whose processes have ended.
  void ask(PmixHelper& helper, std::uint32_t rank);
  void take(const wire::PmixExited& answer);
  /// Ends all open questions: sortie-pmix is gone or does not answer.
  void give_up();

 private:
  void await_answer();

  Answer answer_;
  std::set<std::uint32_t> open_;
  Alarm limit_;
};

}  // namespace sortie::runner
