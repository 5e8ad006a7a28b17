// Tests of ranks that are connected by sockets.
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <numeric>

#include "tests/trainer/parallel/on_ranks.h"
#include "tests/trainer/parallel/socket_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

TEST_CASE("over sockets collectives give what they give anywhere, also in flight together") {
  Wrongs wrongs;
  const RankErrors errors = run_socket_ranks(4, [&](std::unique_ptr<Communicator> world) {
    const int rank = world->rank(), size = world->size();
    CHECK_NOTHROW(wrongs.check(world->library() == "sockets", "library"));
    std::vector<Tensor> values;
    std::vector<Communicator::Handle> handles;
    for (const std::int64_t elements : {1, 1000, 300'001, 17})
      values.push_back(samples<float>(rank, elements));
    for (const Tensor& one : values) handles.push_back(world->all_reduce_async(one, ReduceOp::sum));
    for (std::size_t i = handles.size(); i-- > 0;) handles[i]->wait();
    for (const Tensor& one : values)
      for (std::int64_t i = 0; i < one.elements(); ++i) {
        float sum = sample<float>(0, i);
        for (int other = 1; other < size; ++other) sum += sample<float>(other, i);
        wrongs.check(one.data<float>()[i] == sum, fmt::format("sum {} on {}", i, rank));
      }
    // A split, texts, and messages between two ranks that are sent before they are received.
    auto half = world->split(rank % 2, -rank, "half");
    const auto texts = half->all_gather(fmt::format("text of {}", rank));
    wrongs.check(texts[0] == fmt::format("text of {}", rank % 2 + 2), "texts");
    const Tensor large = samples<float>(rank, 500'000);
    Tensor from_left = make_tensor(DType::f32, 500'000);
    auto sent = world->send_async(large, (rank + 1) % size);
    world->barrier();
    auto got = world->receive_async(from_left, (rank + size - 1) % size);
    got->wait();
    sent->wait();
    wrongs.check(from_left.data<float>()[77] == sample<float>((rank + size - 1) % size, 77),
                 "ring");
    wrongs.check(world->meet(std::chrono::seconds(60)), "meeting");
  });
  CHECK(all_empty(errors));
  CHECK(wrongs.all() == "");
}

TEST_CASE("a rank that goes is named by those that wait for it") {
  const RankErrors errors = run_socket_ranks(3, [&](std::unique_ptr<Communicator> world) {
    world->barrier();
    if (world->rank() == 1) throw std::runtime_error("this rank has had enough");
    const Tensor values = samples<float>(world->rank(), 100'000);
    world->all_reduce(values, ReduceOp::sum);
  });
  CHECK(errors[1] == "this rank has had enough");
  bool named = false;
  for (const int rank : {0, 2}) {
    INFO(errors[static_cast<std::size_t>(rank)]);
    const std::string& error = errors[static_cast<std::size_t>(rank)];
    CHECK(error.find("all-reduce 1 of group world") != std::string::npos);
    CHECK(error.find(" is lost") != std::string::npos);
    named |= error.find("rank 1 is lost") != std::string::npos;
  }
  CHECK(named);  // the slower rank may instead hear that the faster one has ended
}

TEST_CASE("who does not know the secret is turned away, and who does not come is named") {
  MeetingPlace place{"127.0.0.1", 0, "right"};
  Result<Fd> listener = listen_for_ranks(place.port);
  REQUIRE(listener);
  std::string refused;
  std::jthread stranger([&] {
    const MeetingPlace wrong{place.host, place.port, "wrong"};
    const auto met = make_socket_communicator(1, 3, wrong, Fd(), std::chrono::seconds(30));
    refused = met ? "" : met.error().message;
  });
  std::jthread second(
      [&] { (void)make_socket_communicator(2, 3, place, Fd(), std::chrono::seconds(30)); });
  const auto met =
      make_socket_communicator(0, 3, place, std::move(*listener), std::chrono::seconds(5));
  stranger.join();
  REQUIRE(!met);
  CHECK(met.error().code == ErrorCode::timeout);
  CHECK(met.error().message.find("rank 1 did not connect to rank 0 at 127.0.0.1 port") == 0);
  CHECK(refused.find("did not send the list of ranks") != std::string::npos);
}
