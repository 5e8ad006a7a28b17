#include <cstdlib>

#include "trainer/parallel/group_communicator.h"

namespace sortie::trainer {
namespace {

/// Transport of a group of one, which sends no messages.
class NoTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string library() const override { return "none"; }
  void send(int to, int, std::span<const std::byte>, Message&) override {
    SORTIE_CHECK(false, "a message to rank {} of a group of one", to);
  }
  void receive(int from, int, std::span<std::byte>, Message&) override {
    SORTIE_CHECK(false, "a message from rank {} of a group of one", from);
  }
  void progress() override {}
  std::uint64_t completed() const override { return 0; }
  void pause(std::chrono::nanoseconds) override {}
  void withdraw(Message&) override {}
  std::string fate_of(int) const override { return {}; }
  void abort(int exit_code) override { std::_Exit(exit_code); }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<GroupCommunicator>(std::make_unique<NoTransport>());
}

}  // namespace sortie::trainer
