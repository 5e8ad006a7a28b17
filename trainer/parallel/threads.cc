// The threads backend.
#include <fmt/core.h>

#include <exception>
#include <mutex>
#include <thread>

#include "trainer/parallel/group_communicator.h"
#include "trainer/parallel/post_office.h"

namespace sortie::trainer {
namespace {

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(PostOffice& office, int rank) : office_(office), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return office_.size(); }
  std::string library() const override { return "threads"; }
  void send(int to, int tag, std::span<const std::byte> bytes, Message& message) override {
    office_.send(rank_, to, tag, bytes, message);
  }
  void receive(int from, int tag, std::span<std::byte> bytes, Message& message) override {
    office_.receive(from, rank_, tag, bytes, message);
  }
  void progress() override {
    seen_ = office_.completed(rank_);
    office_.check();
  }
  std::uint64_t completed() const override { return office_.completed(rank_); }
  void pause(std::chrono::nanoseconds) override { office_.wait_for_change(rank_, seen_); }
  void withdraw(Message& message) override { office_.withdraw(message); }
  std::string fate_of(int rank) const override { return office_.fate_of(rank); }
  // A rank that is a thread can not end without the others: run_thread_ranks() ends them.
  void abort(int exit_code) override {
    throw CommunicatorError(fmt::format("rank {} ended the job with {}", rank_, exit_code));
  }

 private:
  PostOffice& office_;
  const int rank_;
  std::uint64_t seen_ = 0;  // completed messages at the last progress()
};

std::string words_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace

void run_thread_ranks(int size, const std::function<void(Communicator&)>& body,
                      const ThreadRankOptions& options) {
  PostOffice office(size, options);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      std::string fate = "it has ended";
      try {
        GroupCommunicator communicator(std::make_unique<ThreadTransport>(office, rank));
        body(communicator);
      } catch (...) {
        fate = words_of(std::current_exception());
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      office.leave(rank, fate);
    });
  threads.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace sortie::trainer
