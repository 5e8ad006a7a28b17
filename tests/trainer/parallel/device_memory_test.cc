// Tests of collectives and messages of memory that the host can not access or that is not ready.
// Each begins when its event has passed, and the stream continues when it is done.
#include <thread>

#include "tests/support/test_device.h"
#include "tests/trainer/parallel/on_ranks.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/parallel/transfer.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// Runs the body of every rank with a separate context: on the device under test or, if that is the
/// CPU, with guarded memory or with deferred ops.
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

/// The three ways to finish with a handle.
enum class Ending : std::uint8_t { wait, poll, stream };

void finish(Communicator::Handle handle, Ending ending, ExecutionContext& context) {
  if (ending == Ending::stream) return handle->wait_on(context);
  if (ending == Ending::wait) return handle->wait();
  while (!handle->poll()) std::this_thread::yield();
}

/// Returns element i of rank r: an integer whose sums are exact in every type.
std::int64_t small(int rank, std::int64_t i) {
  return (i * 31 + rank * 17) % 13;
}

/// Collectives of values of one type: their inputs, and checks of their results.
template <class T>
struct Typed {
  ExecutionContext& context;
  Communicator& communicator;
  Wrongs& wrongs;
  Ending ending;

  Tensor put_in(std::int64_t elements) const {
    std::vector<T> values;
    for (std::int64_t i = 0; i < elements; ++i)
      values.push_back(static_cast<T>(static_cast<float>(small(communicator.rank(), i))));
    return ops::tensor_from_host<T>(context, values, {elements});
  }
  Tensor empty(std::int64_t elements) const { return context.empty(dtype_of<T>(), {elements}); }
  template <class Expected>
  void come_out(std::string_view what, const Tensor& tensor, const Expected& expected) const {
    const std::vector<T> values = ops::copy_to_host<T>(context, tensor);
    bool good = true;
    for (std::int64_t i = 0; i < tensor.elements(); ++i)
      good = good && static_cast<std::int64_t>(
                         static_cast<float>(values[static_cast<std::size_t>(i)])) == expected(i);
    wrongs.check(good, fmt::format("{} of {} {}, ended by {}", what, tensor.elements(),
                                   dtype_name(tensor.dtype()), static_cast<int>(ending)));
  }

  void all_of(std::int64_t elements) const {
    const int rank = communicator.rank(), ranks = communicator.size();
    const auto done = [this](Communicator::Handle handle) {
      finish(std::move(handle), ending, context);
    };
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      if (op == ReduceOp::sum && dtype_of<T>() == DType::u8) continue;
      const auto reduced = [&](std::int64_t i) {
        std::int64_t value = small(0, i);
        for (int other = 1; other < ranks; ++other)
          value = op == ReduceOp::sum ? value + small(other, i) : std::max(value, small(other, i));
        return value;
      };
      const Tensor sum = put_in(elements), whole = put_in(elements * ranks);
      const Tensor part = empty(elements);
      done(communicator.all_reduce_async(sum, op, context.record()));
      come_out("all-reduce", sum, reduced);
      done(communicator.reduce_scatter_async(whole, part, op, context.record()));
      come_out("reduce-scatter", part,
               [&](std::int64_t i) { return reduced(elements * rank + i); });
    }
    const Tensor mine = put_in(elements), gathered = empty(elements * ranks);
    done(communicator.all_gather_async(mine, gathered, context.record()));
    come_out("all-gather", gathered,
             [&](std::int64_t i) { return small(static_cast<int>(i / elements), i % elements); });
    const Tensor told = put_in(elements);
    done(communicator.broadcast_async(told, ranks - 1, context.record()));
    come_out("broadcast", told, [&](std::int64_t i) { return small(ranks - 1, i); });

    const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), elements);
    const Tensor out = put_in(elements * ranks), in = empty(elements * ranks);
    done(communicator.all_to_all_async(out, counts, in, counts, context.record()));
    come_out("all-to-all", in, [&](std::int64_t i) {
      return small(static_cast<int>(i / elements), elements * rank + i % elements);
    });
    const int before = (rank + ranks - 1) % ranks;
    const Tensor sent = put_in(elements), received = empty(elements);
    auto receive = communicator.receive_async(received, before, context.record());
    done(communicator.send_async(sent, (rank + 1) % ranks, context.record()));
    done(std::move(receive));
    come_out("message", received, [&](std::int64_t i) { return small(before, i); });
  }
};

}  // namespace

TEST_CASE("collectives take the memory of a device of any type, and end by wait, poll or stream") {
  on_device_ranks(3, [](Communicator& communicator, ExecutionContext& context, Wrongs& wrongs) {
    for (const Ending ending : {Ending::wait, Ending::poll, Ending::stream})
      for (const std::int64_t elements : {5, 9'001}) {
        Typed<float>{context, communicator, wrongs, ending}.all_of(elements);
        Typed<bf16>{context, communicator, wrongs, ending}.all_of(elements);
        Typed<double>{context, communicator, wrongs, ending}.all_of(elements);
        Typed<std::int32_t>{context, communicator, wrongs, ending}.all_of(elements);
        Typed<std::int64_t>{context, communicator, wrongs, ending}.all_of(elements);
        Typed<std::uint8_t>{context, communicator, wrongs, ending}.all_of(elements);
      }
  });
}

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
    ops::fill(context, -1.0, out);  // must not overtake the send
    std::vector<float> expected;
    for (int from = 0; from < 3; ++from)
      expected.insert(expected.end(),
                      static_cast<std::size_t>(receives[static_cast<std::size_t>(from)]),
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
      // Some messages are short, and one is of host memory: they do not overtake the others.
      const std::int64_t elements = i % 2 == 0 ? 40'000 : 3;
      received.push_back(Transfer::receive(context, communicator, DType::f32, {elements}, other));
      sent.push_back(Transfer::send(context, communicator, filled(context, elements, i), other));
    }
    float last = 17.0f, got = 0.0f;
    const auto receive = communicator.receive_async(Tensor::wrap(&got, DType::f32, {1}), other);
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
        ops::copy_to_host<float>(context, old);  // waits until it is written
        ops::fill(context, -8.0, copy);
        ops::add(context, old, old, copy);
      }  // its memory is reused
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
