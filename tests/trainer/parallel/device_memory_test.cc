// Collectives and messages of memory that the host does not have, or that is not ready: each begins
// when its event has passed, and the stream goes on when it is done.
#include "tests/support/test_device.h"
#include "tests/trainer/parallel/on_ranks.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/parallel/transfer.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// Every rank's body on a context of its own: of the device that is tested, or, where that is the
/// CPU, on guarded memory or with late work.
void on_device_ranks(int ranks,
                     const std::function<void(Communicator&, ExecutionContext&, Wrongs&)>& body) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    const bool late = !on_gpu() && seed % 2 == 0;
    Wrongs wrongs;
    run_thread_ranks(ranks,
                     [&](Communicator& communicator) {
                       Device place = device();
                       if (!on_gpu()) place = late ? Device{} : Device{.kind = DeviceKind::guarded};
                       ExecutionContext context(1, place);
                       if (late)
                         context.defer(seed * 10 + static_cast<std::uint64_t>(communicator.rank()));
                       body(communicator, context, wrongs);
                       context.synchronize();
                     },
                     {std::chrono::microseconds(seed > 2 ? 100 : 0), seed});
    CHECK(wrongs.all() == "");
  }
}

Tensor filled(ExecutionContext& context, std::int64_t elements, double value) {
  Tensor tensor = context.empty(DType::f32, {elements});
  ops::fill(context, value, tensor);
  return tensor;
}

bool all_are(ExecutionContext& context, const Tensor& tensor, double value) {
  const auto values = ops::copy_to_host<float>(context, tensor);
  return std::ranges::all_of(values,
                             [value](float one) { return one == static_cast<float>(value); });
}

}  // namespace

TEST_CASE("collectives take the memory of a device when its values are there") {
  on_device_ranks(3, [](Communicator& communicator, ExecutionContext& context, Wrongs& wrongs) {
    const int rank = communicator.rank();
    for (const std::int64_t elements : {7, 30'000}) {
      Tensor sum = filled(context, elements, 1.0 + rank), sent = filled(context, elements, rank);
      communicator.all_reduce_async(sum, ReduceOp::sum, context.record())->wait_on(context);
      communicator.broadcast_async(sent, 2, context.record())->wait_on(context);
      wrongs.check(all_are(context, sum, 6.0), "sum");
      wrongs.check(all_are(context, sent, 2.0), "broadcast");
    }
    // Rank r sends r + 1 elements to each of the others, and none to itself.
    Tensor out = filled(context, 2 * (rank + 1), 10.0 + rank);
    std::vector<std::int64_t> sends(3, rank + 1), receives = {1, 2, 3};
    sends[static_cast<std::size_t>(rank)] = receives[static_cast<std::size_t>(rank)] = 0;
    Tensor in = context.empty(DType::f32, {6 - (rank + 1)});
    communicator.all_to_all_async(out, sends, in, receives, context.record())->wait_on(context);
    ops::fill(context, -1.0, out);  // not before it is sent
    std::vector<float> expected;
    for (int from = 0; from < 3; ++from)
      expected.insert(expected.end(), static_cast<std::size_t>(receives[static_cast<std::size_t>(from)]),
                      static_cast<float>(10 + from));
    wrongs.check(ops::copy_to_host<float>(context, in) == expected, "all-to-all");
  });
}

TEST_CASE("messages of a device come in the order in which they were sent") {
  on_device_ranks(2, [](Communicator& communicator, ExecutionContext& context, Wrongs& wrongs) {
    constexpr int kMessages = 5;
    const int other = 1 - communicator.rank();
    std::vector<Transfer> sent, received;
    for (int i = 0; i < kMessages; ++i) {
      // Of one that is short, and of host memory, in between: neither overtakes.
      const std::int64_t elements = i % 2 == 0 ? 40'000 : 3;
      received.push_back(
          Transfer::receive(context, communicator, DType::f32, {elements}, other));
      sent.push_back(Transfer::send(context, communicator, filled(context, elements, i), other));
    }
    float last = 17.0f, got = 0.0f;
    const auto receive =
        communicator.receive_async(Tensor::wrap(&got, DType::f32, {1}), other);
    const auto send = communicator.send_async(Tensor::wrap(&last, DType::f32, {1}), other);
    for (int i = 0; i < kMessages; ++i) {
      const Tensor values = received[static_cast<std::size_t>(i)].wait();
      wrongs.check(all_are(context, values, i), fmt::format("message {}", i));
    }
    for (Transfer& one : sent) (void)one.wait();
    receive->wait();
    send->wait();
    wrongs.check(got == 17.0f, "the message of host memory");
  });
}

TEST_CASE("a message does not come into memory that a stream still works on") {
  on_device_ranks(2, [](Communicator& communicator, ExecutionContext& context, Wrongs& wrongs) {
    const int other = 1 - communicator.rank();
    for (int round = 0; round < 4; ++round) {
      Tensor copy = context.empty(DType::f32, {5'000});
      {
        const Tensor old = filled(context, 5'000, -7.0);
        ops::copy_to_host<float>(context, old);  // there
        ops::fill(context, -8.0, copy);
        ops::add(context, old, old, copy);
      }  // its memory is handed out again
      Transfer in = Transfer::receive(context, communicator, DType::f32, {5'000}, other);
      Transfer out =
          Transfer::send(context, communicator, filled(context, 5'000, 3.0 + round), other);
      const Tensor values = in.wait();
      wrongs.check(all_are(context, copy, -14.0), "what was read before");
      wrongs.check(all_are(context, values, 3.0 + round), "what has come");
      (void)out.wait();
    }
  });
}
