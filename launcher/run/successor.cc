#include "launcher/run/successor.h"

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>

#include "common/asio/token.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds kLookTime{5000};

struct SuccessorAnswer {
  explicit SuccessorAnswer(const asio::any_io_executor& executor) : come(executor, kLookTime) {}
  asio::steady_timer come;
  std::optional<bool> newer;
};

}  // namespace

asio::awaitable<std::optional<bool>> has_successor(asio::any_io_executor executor,
                                                   RunFolder& folder) {
  const auto answer = std::make_shared<SuccessorAnswer>(executor);
  folder.look_for_newer([answer](bool newer) {
    answer->newer = newer;
    answer->come.cancel();
  });
  co_await answer->come.async_wait(kToken);
  co_return answer->newer;
}

}  // namespace sortie::launcher
