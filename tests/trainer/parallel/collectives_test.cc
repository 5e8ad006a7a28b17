// Compares each collective on thread ranks with its expected result, under several orders of
// delivery.
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/trainer/parallel/on_ranks.h"
#include "trainer/parallel/communicator.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// Returns ((x0 + x1) + x2) + ...; bf16 is summed in f32.
template <class T>
T reduced_in_order(ReduceOp op, int ranks, std::int64_t i) {
  using Sum = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  auto sum = static_cast<Sum>(sample<T>(0, i));
  for (int rank = 1; rank < ranks; ++rank) {
    const auto value = static_cast<Sum>(sample<T>(rank, i));
    sum = op == ReduceOp::sum ? static_cast<Sum>(sum + value) : std::max(sum, value);
  }
  return static_cast<T>(sum);
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class T>
void check_reductions(Communicator& communicator, ReduceOp op, std::int64_t elements,
                      Wrongs& wrongs) {
  const int ranks = communicator.size(), rank = communicator.rank();
  const auto at = [&](std::string_view what) {
    return fmt::format("{} of {} {} on rank {} of {}", what, elements, dtype_name(dtype_of<T>()),
                       rank, ranks);
  };
  const Tensor values = samples<T>(rank, elements);
  communicator.all_reduce(values, op);
  bool good = true;
  for (std::int64_t i = 0; i < elements; ++i)
    good = good && same_bits(values.data<T>()[i], reduced_in_order<T>(op, ranks, i));
  wrongs.check(good, at("all-reduce"));

  // A reduce-scatter gives the bits of the all-reduce, also if it writes to its own part of the
  // input.
  const Tensor whole = samples<T>(rank, elements * ranks);
  const Tensor part = make_tensor(dtype_of<T>(), elements);
  communicator.reduce_scatter(whole, part, op);
  const Tensor own = whole.slice(0, elements * rank, elements);
  communicator.reduce_scatter(whole, own, op);
  good = true;
  for (std::int64_t i = 0; i < elements; ++i) {
    const T expected = reduced_in_order<T>(op, ranks, elements * rank + i);
    good = good && same_bits(part.data<T>()[i], expected) && same_bits(own.data<T>()[i], expected);
  }
  wrongs.check(good, at("reduce-scatter"));
}

}  // namespace

TEST_CASE("sums and maxima are those in the order of the ranks, to the last bit, for every type") {
  for (const ThreadRankOptions& options : deliveries())
    for (const int ranks : {1, 2, 3, 5, 8}) {
      Wrongs wrongs;
      run_thread_ranks(
          ranks,
          [&](Communicator& communicator) {
            // Below and above the threshold for chunks; fewer elements than ranks; several
            // segments.
            for (const std::int64_t elements : {1, 3, 1000, 40'003, 400'001}) {
              check_reductions<float>(communicator, ReduceOp::sum, elements, wrongs);
              if (elements == 400'001) continue;
              check_reductions<bf16>(communicator, ReduceOp::sum, elements, wrongs);
              check_reductions<double>(communicator, ReduceOp::sum, elements, wrongs);
              check_reductions<std::int64_t>(communicator, ReduceOp::sum, elements, wrongs);
              check_reductions<std::int32_t>(communicator, ReduceOp::max, elements, wrongs);
              check_reductions<float>(communicator, ReduceOp::max, elements, wrongs);
            }
          },
          options);
      CHECK(wrongs.all() == "");
    }
}

TEST_CASE("the maximum is NaN where a rank has NaN, and u8 has one") {
  Wrongs wrongs;
  run_thread_ranks(3, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    float values[] = {rank == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f,
                      -static_cast<float>(rank), -std::numeric_limits<float>::infinity()};
    communicator.all_reduce(Tensor::wrap(values, DType::f32, {3}), ReduceOp::max);
    wrongs.check(values[0] != values[0] && values[1] == 0.0f &&
                     values[2] == -std::numeric_limits<float>::infinity(),
                 "maximum with NaN");
    std::uint8_t small[] = {static_cast<std::uint8_t>(200 + rank)};
    communicator.all_reduce(Tensor::wrap(small, DType::u8, {1}), ReduceOp::max);
    wrongs.check(small[0] == 202, "maximum of u8");
  });
  CHECK(wrongs.all() == "");
}

TEST_CASE("what is moved arrives whole: broadcast, all-gather, all-to-all, send and receive") {
  for (const ThreadRankOptions& options : deliveries())
    for (const int ranks : {1, 2, 3, 4, 7}) {
      Wrongs wrongs;
      run_thread_ranks(
          ranks,
          [&](Communicator& communicator) {
            const int rank = communicator.rank();
            const auto same = [&](const Tensor& tensor, int of, std::int64_t shift) {
              for (std::int64_t i = 0; i < tensor.elements(); ++i)
                if (tensor.data<std::int32_t>()[i] != sample<std::int32_t>(of, i + shift))
                  return false;
              return true;
            };
            // A single message; the tree; pieces that are passed on, more of them than ranks.
            for (const std::int64_t elements : {1, 5000, 700'001}) {
              for (int root = 0; root < ranks; ++root) {
                const Tensor values = samples<std::int32_t>(rank, elements);
                communicator.broadcast(values, root);
                wrongs.check(same(values, root, 0),
                             fmt::format("broadcast of {} from {}", elements, root));
              }
              const Tensor all = make_tensor(DType::i32, elements * ranks);
              communicator.all_gather(samples<std::int32_t>(rank, elements), all);
              const Tensor in_place = make_tensor(DType::i32, elements * ranks);
              const Tensor mine = in_place.slice(0, elements * rank, elements);
              for (std::int64_t i = 0; i < elements; ++i)
                mine.data<std::int32_t>()[i] = sample<std::int32_t>(rank, i);
              communicator.all_gather(mine, in_place);
              for (int from = 0; from < ranks; ++from)
                wrongs.check(same(all.slice(0, elements * from, elements), from, 0) &&
                                 same(in_place.slice(0, elements * from, elements), from, 0),
                             fmt::format("all-gather of {} from {}", elements, from));
              if (ranks == 1) continue;
              const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
              const Tensor first = make_tensor(DType::i32, elements);
              const Tensor second = make_tensor(DType::i32, elements);
              const Tensor out = samples<std::int32_t>(rank, elements);
              const Tensor more = samples<std::int32_t>(rank + 100, elements);
              auto h1 = communicator.receive_async(first, before);
              auto h2 = communicator.receive_async(second, before);
              auto h3 = communicator.send_async(out, next);
              auto h4 = communicator.send_async(more, next);
              for (const auto* handle : {&h4, &h2, &h1, &h3}) (*handle)->wait();
              wrongs.check(same(first, before, 0) && same(second, before + 100, 0),
                           fmt::format("two messages of {} in a ring", elements));
            }
          },
          options);
      CHECK(wrongs.all() == "");
    }
}

TEST_CASE("all-to-all moves the counts that ranks agreed on, none among them") {
  for (const ThreadRankOptions& options : deliveries())
    for (const int ranks : {1, 2, 3, 6}) {
      Wrongs wrongs;
      run_thread_ranks(
          ranks,
          [&](Communicator& communicator) {
            const int rank = communicator.rank();
            // Element k of what `from` sends to `to` is from * 1e6 + to * 1e5 + k.
            const auto count = [](int from, int to) -> std::int64_t {
              return (from + 2 * to) % 3 == 0 ? 0 : (from * 37 + to * 11) % 97 + from * 20'000;
            };
            std::vector<std::int64_t> send, receive, out;
            for (int peer = 0; peer < ranks; ++peer) {
              send.push_back(count(rank, peer));
              receive.push_back(count(peer, rank));
              for (std::int64_t k = 0; k < send.back(); ++k)
                out.push_back(rank * 1'000'000'000LL + peer * 1'000'000LL + k);
            }
            std::vector<std::int64_t> in(static_cast<std::size_t>(
                std::accumulate(receive.begin(), receive.end(), std::int64_t{0})));
            out.reserve(1), in.reserve(1);  // an address even for no elements
            const auto view = [](std::vector<std::int64_t>& values) {
              return Tensor::wrap(values.data(), DType::i64,
                                  {static_cast<std::int64_t>(values.size())});
            };
            communicator.all_to_all(view(out), send, view(in), receive);
            std::size_t at = 0;
            for (int peer = 0; peer < ranks; ++peer)
              for (std::int64_t k = 0; k < receive[static_cast<std::size_t>(peer)]; ++k, ++at)
                wrongs.check(in[at] == peer * 1'000'000'000LL + rank * 1'000'000LL + k,
                             fmt::format("element {} from {} on {}", k, peer, rank));
          },
          options);
      CHECK(wrongs.all() == "");
    }
}

TEST_CASE("small values of the host: sums, bytes and texts of any length") {
  for (const ThreadRankOptions& options : deliveries())
    for (const int ranks : {1, 2, 3, 5}) {
      Wrongs wrongs;
      run_thread_ranks(
          ranks,
          [&](Communicator& communicator) {
            const int rank = communicator.rank();
            double values[] = {static_cast<double>(rank), 1.0};
            communicator.all_reduce_sum(values);
            wrongs.check(values[0] == ranks * (ranks - 1) / 2 && values[1] == ranks, "sum");
            std::vector<std::byte> bytes(3, std::byte(rank));
            communicator.broadcast(bytes, ranks - 1);
            wrongs.check(bytes[2] == std::byte(ranks - 1), "broadcast of bytes");
            const auto text_of = [](int of) {
              return std::string(static_cast<std::size_t>(of % 3 * 50'000), 'a') +
                     (of == 1 ? "" : "r" + std::to_string(of));
            };
            const auto texts = communicator.all_gather(text_of(rank));
            for (int from = 0; from < ranks; ++from)
              wrongs.check(texts[static_cast<std::size_t>(from)] == text_of(from), "text");
            communicator.barrier();
          },
          options);
      CHECK(wrongs.all() == "");
    }
}

TEST_CASE("no rank leaves a barrier before the last has come") {
  for (const ThreadRankOptions& options : deliveries())
    for (const int ranks : {2, 3, 6}) {
      std::atomic<int> come = 0;
      Wrongs wrongs;
      run_thread_ranks(
          ranks,
          [&](Communicator& communicator) {
            for (int round = 1; round <= 5; ++round) {
              if (communicator.rank() == round % ranks)
                std::this_thread::sleep_for(std::chrono::milliseconds(3));
              ++come;
              communicator.barrier();
              wrongs.check(come >= round * ranks, "left too early");
              communicator.barrier();
            }
          },
          options);
      CHECK(wrongs.all() == "");
    }
}
