#include "trainer/loop/launcher_inquiry.h"

#include <fmt/core.h>

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "common/base/log.h"

namespace sortie::trainer {
namespace {

using std::chrono::milliseconds;

constexpr const char* kQuestionKey = "wait";
constexpr const char* kFoundKey = "wait/found";
/// Time for the launcher to take a text, or to send one that it has.
constexpr milliseconds kLauncher{1000};
/// Time for the other ranks to answer; a rank answers within a second.
constexpr milliseconds kRanks{2000};
/// The question is awaited as long as the run lasts. It is registered again now and then, because a
/// supervisor that has taken over the run does not know who waits for it.
constexpr std::chrono::seconds kRegisterAgain{30};
constexpr std::chrono::hours kWholeRun{24 * 365};
constexpr std::size_t kMostFoundBytes = 4000;  // the store has values of at most 4096

std::string answer_key(int rank) {
  return fmt::format("wait/{}", rank);
}

}  // namespace

std::string position_text(const ProgressMarks::Seen& seen) {
  if (seen.step == 0) return {};
  return fmt::format("step {}, {}", seen.step, training::section_name(seen.section));
}

LauncherInquiry::LauncherInquiry(std::string socket_path, int rank, int world_size)
    : socket_path_(std::move(socket_path)), rank_(rank), world_size_(world_size) {}

LauncherInquiry::~LauncherInquiry() {
  LauncherInquiry::stop();
}

void LauncherInquiry::start(Answer answer) {
  auto store = LauncherStore::open(socket_path_);
  if (!store) {
    log::warning("this rank can not answer others when a collective makes no progress: {}",
                 store.error().message);
    return;
  }
  listening_ = *std::move(store);
  thread_ = std::thread([this, answer = std::move(answer)] { listen(answer); });
}

void LauncherInquiry::stop() {
  if (!thread_.joinable()) return;
  listening_->interrupt();
  thread_.join();
}

void LauncherInquiry::listen(const Answer& answer) {
  try {
    listening_->repeat_every(kRegisterAgain);
    const auto question = listening_->get(kQuestionKey, kWholeRun, "no question");
    if (!question) return;  // the rank or the runner ends
    const std::string text = answer(*question);
    if (!text.empty()) (void)listening_->put(answer_key(rank_), text, kLauncher);
  } catch (const std::exception& problem) {
    log::warning("the question of another rank could not be answered: {}", problem.what());
  }
}

std::optional<PeerInquiry::Conclusion> LauncherInquiry::ask(const std::string& question,
                                                            const Conclude& conclude) {
  auto store = LauncherStore::open(socket_path_);
  if (!store) return std::nullopt;
  const auto put = store->put(kQuestionKey, question, kLauncher);
  if (!put) {
    // Refused: another rank has asked. A launcher that does not answer can not help.
    if (put.error().code != ErrorCode::protocol) return std::nullopt;
    auto asked = store->get(kQuestionKey, kLauncher, "no question");
    if (!asked) return std::nullopt;
    auto found = store->get(kFoundKey, kRanks + 2 * kLauncher, "no conclusion");
    if (!found) return std::nullopt;
    return Conclusion{*std::move(asked), *std::move(found)};
  }
  std::vector<std::string> keys;
  for (int other = 0; other < world_size_; ++other)
    if (other != rank_) keys.push_back(answer_key(other));
  auto answers = store->get_all(keys, kRanks);
  if (!answers) return std::nullopt;
  answers->insert(answers->begin() + rank_, std::nullopt);
  std::string text = conclude(*answers);
  (void)store->put(kFoundKey, text.substr(0, kMostFoundBytes), kLauncher);
  return Conclusion{question, std::move(text)};
}

}  // namespace sortie::trainer
