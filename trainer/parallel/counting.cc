#include "trainer/parallel/counting.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

class Done final : public CollectiveHandle {
 public:
  bool poll() override { return true; }
  void wait() override {}
  void wait_on(ExecutionContext&) override {}
};

double payload_of(const Tensor& tensor) {
  return static_cast<double>(tensor.elements()) * static_cast<double>(dtype_bytes(tensor.dtype()));
}

/// Counts the bytes of the algorithms for data that is too large for one message (README.md).
class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(int rank, int size, std::string name, SentBytes& sent)
      : rank_(rank), size_(size), name_(std::move(name)), sent_(sent), to_all_(sent[{name_}]) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  std::string library() const override { return "none"; }

  Handle all_reduce_async(const Tensor& values, ReduceOp, const Event&) override {
    return count(2.0 * others() * payload_of(values) / size_);
  }
  Handle reduce_scatter_async(const Tensor& input, const Tensor&, ReduceOp, const Event&) override {
    return count(others() * payload_of(input) / size_);
  }
  Handle all_gather_async(const Tensor& input, const Tensor&, const Event&) override {
    return count(others() * payload_of(input));
  }
  Handle broadcast_async(const Tensor& values, int, const Event&) override {
    return count(payload_of(values));
  }
  Handle all_to_all_async(const Tensor& input, std::span<const std::int64_t> send_counts,
                          const Tensor&, std::span<const std::int64_t>, const Event&) override {
    const auto own = static_cast<double>(send_counts[static_cast<std::size_t>(rank_)]);
    const auto all = static_cast<double>(std::max<std::int64_t>(input.elements(), 1));
    return count(payload_of(input) * (1.0 - own / all));
  }
  Handle send_async(const Tensor& values, int to, const Event&) override {
    sent_[{name_, to}] += payload_of(values);
    return count(0.0);
  }
  Handle receive_async(const Tensor&, int, const Event&) override { return count(0.0); }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int, std::string name) override {
    SORTIE_CHECK(false, "group {} of planned ranks is split into {}", name_, name);
  }
  std::vector<std::string> all_gather(std::string_view text) override {
    return std::vector<std::string>(static_cast<std::size_t>(size_), std::string(text));
  }
  using Communicator::all_gather;
  bool meet(std::chrono::milliseconds) override { return true; }
  void abort(int exit_code) override { std::_Exit(exit_code); }

 private:
  double others() const { return size_ - 1; }
  Handle count(double bytes) {
    to_all_ += bytes;
    return std::make_unique<Done>();
  }

  int rank_, size_;
  std::string name_;
  SentBytes& sent_;
  double& to_all_;
};

}  // namespace

std::unique_ptr<Communicator> make_counting_communicator(int rank, int size, std::string name,
                                                         SentBytes& sent) {
  SORTIE_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  return std::make_unique<CountingCommunicator>(rank, size, std::move(name), sent);
}

}  // namespace sortie::trainer
