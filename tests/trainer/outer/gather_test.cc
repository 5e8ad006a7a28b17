#include "trainer/outer/gather.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/memory_links.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;
using Messages = std::vector<std::vector<std::byte>>;

struct Gathering {
  explicit Gathering(std::size_t members) : network({.seed = members}) {
    order.epoch = 4;
    for (std::size_t i = 0; i < members; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      links.push_back(network.links(name));
      order.members.push_back({name, links[i]->address(), 1.0});
      own.emplace_back(1000, static_cast<std::byte>(i + 1));
    }
  }
  /// One that fails ends the others' waits.
  std::vector<Result<Messages>> run() {
    std::vector<Result<Messages>> results(links.size());
    std::vector<outer::ExchangeMemory> memory(links.size());
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < links.size(); ++i)
      threads.emplace_back([&, i] {
        results[i] = outer::gather(*links[i], order, i, own[i], memory[i]);
        if (!results[i] && results[i].error().code != ErrorCode::interrupted)
          for (const auto& other : links) other->cancel();
      });
    threads.clear();
    links.clear();  // before the memory
    return results;
  }
  sortie::testing::MemoryNetwork network;
  std::vector<std::unique_ptr<outer::SiteLinks>> links;
  training::OuterExchange order;
  Messages own;
};

}  // namespace

TEST_CASE("members gather what each has sent, and nothing of one that abstains") {
  for (std::size_t members = 1; members <= 5; ++members) {
    Gathering all(members);
    Messages wanted = all.own;
    if (members > 2) {
      all.order.members[1].weight = 0.0;
      wanted[1].clear();
    }
    for (const auto& result : all.run()) {
      REQUIRE_MESSAGE(result, result.error().message);
      CHECK(*result == wanted);
    }
  }
}

TEST_CASE("a member that dies while all gather is named, and one of another round refused") {
  for (const std::uint64_t message : {0u, 1u}) {
    Gathering all(3);
    all.network.kill_at("b", message);
    bool named = false;
    for (const auto& result : all.run())
      if (!result)
        named |= result.error().code == ErrorCode::lost &&
                 result.error().message.find("site b") != std::string::npos;
    CHECK(named);
  }
  Gathering two(2);
  outer::ExchangeMemory memory;
  std::jthread other([&] {
    training::OuterExchange later = two.order;
    later.round = 9;
    CHECK_FALSE(outer::gather(*two.links[1], later, 1, two.own[1], memory));
  });
  outer::ExchangeMemory here;
  const auto refused = outer::gather(*two.links[0], two.order, 0, two.own[0], here);
  two.links[1]->cancel();
  other.join();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("its round is 9, not 0") != std::string::npos);
  two.links.clear();
}
