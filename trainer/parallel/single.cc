#include <cstdlib>

#include "trainer/parallel/communicator.h"
#include "trainer/parallel/done_handle.h"

namespace sortie::trainer {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string library() const override { return "none"; }
  std::unique_ptr<CollectiveHandle> all_reduce_sum_async(std::span<float>) override {
    return std::make_unique<DoneHandle>();
  }
  void all_reduce_sum(std::span<double>) override {}
  void broadcast(std::span<std::byte>, int) override {}
  std::vector<std::string> all_gather(std::string_view text) override {
    return {std::string(text)};
  }
  void barrier() override {}
  bool meet(std::chrono::milliseconds) override { return true; }
  void abort(int exit_code) override { std::_Exit(exit_code); }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace sortie::trainer
