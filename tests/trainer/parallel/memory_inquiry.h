// PeerInquiry of ranks that are threads of one process.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/parallel/peer_inquiry.h"

namespace sortie::trainer::test {

/// The question and the answers of one run.
struct Inquiries {
  const int ranks;
  const std::set<int> silent;  // do not answer, as ranks that are stopped
  std::mutex mutex;
  std::map<int, PeerInquiry::Answer> answers = {};
  std::optional<PeerInquiry::Conclusion> conclusion = {};
};

class MemoryInquiry final : public PeerInquiry {
 public:
  MemoryInquiry(std::shared_ptr<Inquiries> of, int rank) : of_(std::move(of)), rank_(rank) {}
  void start(Answer answer) override {
    const std::lock_guard lock(of_->mutex);
    of_->answers[rank_] = std::move(answer);
  }
  void stop() override {
    const std::lock_guard lock(of_->mutex);
    of_->answers.erase(rank_);
  }
  std::optional<Conclusion> ask(const std::string& question, const Conclude& conclude) override {
    const std::lock_guard lock(of_->mutex);
    if (of_->conclusion) return of_->conclusion;
    std::vector<std::optional<std::string>> texts(static_cast<std::size_t>(of_->ranks));
    for (const auto& [rank, answer] : of_->answers)
      if (rank != rank_ && !of_->silent.contains(rank))
        texts[static_cast<std::size_t>(rank)] = answer(question);
    of_->conclusion = {question, conclude(texts)};
    return of_->conclusion;
  }

 private:
  const std::shared_ptr<Inquiries> of_;
  const int rank_;
};

}  // namespace sortie::trainer::test
