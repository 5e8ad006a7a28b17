// PmixMemory: how requests and published names of ranks are repeated to another launcher.
#include "runner/mpi/pmix_memory.h"

#include <doctest/doctest.h>

namespace sortie::runner {
namespace {

using wire::PmixNames;
using Action = PmixNames::Action;

std::vector<PmixNames> names_in(const PmixMemory& memory) {
  std::vector<PmixNames> out;
  for (const wire::Message& message : memory.open(3))
    if (const auto* names = std::get_if<PmixNames>(&message)) out.push_back(*names);
  return out;
}

wire::PmixNamesDone done(std::uint64_t id, std::int32_t status) {
  wire::PmixNamesDone answer;
  answer.id = id;
  answer.status = status;
  return answer;
}

TEST_CASE("published names are restored, then open questions asked again") {
  PmixMemory memory;
  memory.asked(PmixNames{1, 3, Action::publish, 0, {"a", "b"}, {"1", "2"}});
  memory.asked(PmixNames{2, 4, Action::publish, 0, {"c"}, {"3"}});
  memory.asked(PmixNames{3, 4, Action::publish, 0, {"a"}, {"x"}});
  memory.asked(PmixNames{4, 4, Action::lookup, 1, {"later"}, {}});
  CHECK(memory.answered(done(1, 0)));
  CHECK(memory.answered(done(2, 0)));
  CHECK(memory.answered(done(3, -53)));  // the name is taken: not published by this rank
  CHECK(!memory.answered(done(3, -53)));
  CHECK(!memory.answered(done(99, 0)));
  const auto out = names_in(memory);
  REQUIRE(out.size() == 5);
  CHECK(out[0].action == Action::restore);
  CHECK(out[0].rank == 3);
  CHECK(out[0].keys == std::vector<std::string>{"a"});
  CHECK(out[0].values == std::vector<std::string>{"1"});
  CHECK(out[2].rank == 4);
  CHECK(out[3].action == Action::restore);
  CHECK(out[3].keys.empty());
  CHECK(out[4].id == 4);
  CHECK(out[4].action == Action::lookup);
}

TEST_CASE("what a rank took back is not restored, and only its own") {
  PmixMemory memory;
  memory.asked(PmixNames{1, 3, Action::publish, 0, {"a", "b"}, {"1", "2"}});
  memory.asked(PmixNames{2, 4, Action::unpublish, 0, {"a"}, {}});
  memory.asked(PmixNames{3, 3, Action::unpublish, 0, {"b"}, {}});
  CHECK(memory.answered(done(1, 0)));
  CHECK(memory.answered(done(2, -46)));
  CHECK(names_in(memory).size() == 4);  // a, b, the end of the list, and the open request
  CHECK(memory.answered(done(3, 0)));
  const auto out = names_in(memory);
  REQUIRE(out.size() == 2);
  CHECK(out[0].keys == std::vector<std::string>{"a"});
  memory.asked(PmixNames{4, 3, Action::unpublish, 0, {}, {}});
  CHECK(memory.answered(done(4, 0)));
  CHECK(names_in(memory).size() == 1);
}

}  // namespace
}  // namespace sortie::runner
