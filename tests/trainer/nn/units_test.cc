// Tests of the units that are gathered as one, and of where they are stored.
#include "trainer/nn/units.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/support/flat_values.h"

namespace sortie::trainer::test {
namespace {

void declare_model(ParameterStore& store) {
  store.add({"embedding.weight", {37, 8}, Init::normal(1.0), Use::matrix, true});
  for (const char* layer : {"layers.0", "layers.1", "layers.2"}) {
    const std::string name(layer);
    store.add({name + ".norm.weight", {8}, Init::ones(), Use::vector, false});
    store.add({name + ".router.weight", {5, 8}, Init::normal(1.0), Use::f32_matrix, true});
    store.add({name + ".router.bias", {5}, Init::zeros(), Use::state, false});
    store.add({name + ".up.weight", {24, 8}, Init::normal(1.0), Use::matrix, true});
  }
  store.add({"final_norm.weight", {8}, Init::ones(), Use::vector, false});
  store.add({"head.weight", {37, 8}, Init::normal(1.0), Use::matrix, true});
  store.add({"layers.1.up.lora_down", {2, 8}, Init::normal(1.0), Use::matrix, true});
  store.find("layers.0.up.weight")->freeze();
  store.find("layers.1.norm.weight")->freeze();
}

TEST_CASE("a unit is a layer or the first word of a name") {
  CHECK(unit_name("layers.12.attention.qkv.weight") == "layers.12");
  CHECK(unit_name("embedding.weight") == "embedding");
  CHECK(unit_name("final_norm.bias") == "final_norm");
  CHECK(unit_name("head") == "head");
}

TEST_CASE("ranges of units lie one behind the other, what is trained in front") {
  const std::vector<UnitMember> members = {
      {"embedding.weight", 100, true, true, true}, {"layers.0.norm", 8, false, false, true},
      {"layers.0.up", 50, true, true, false},      {"layers.1.up", 90, true, true, true},
      {"final_norm", 8, false, false, true},       {"head", 60, true, true, true}};
  const UnitLayout layout = lay_out_units(members, 32);
  REQUIRE(layout.units.size() == 5);
  // Embedding, layers and head use two rooms alternately. The norm has a separate room.
  std::vector<std::size_t> rooms;
  for (const Unit& unit : layout.units) rooms.push_back(unit.room);
  CHECK(rooms == std::vector<std::size_t>{0, 1, 0, 2, 1});
  CHECK(layout.rooms.size() == 3);
  CHECK(layout.rooms[0].narrow == 128);
  CHECK(layout.rooms[1].narrow == 64);
  CHECK(layout.rooms[1].wide == 32);
  CHECK(layout.rooms[1].gradients == 64);  // of the head: frozen parameters have none
  CHECK(layout.trained == 64 + 32 + 96 + 32 + 128);
  CHECK(layout.all == layout.trained + 64);
  std::int64_t end = 0;
  for (const FlatRange& bucket : layout.buckets) {
    CHECK(bucket.begin == end);
    CHECK(bucket.elements() % 32 == 0);
    end = bucket.end;
  }
  CHECK(end == layout.all);
  CHECK(layout.offsets[5] == 0);  // the unit that is used last comes first
  CHECK(layout.offsets[2] == layout.trained);
}

TEST_CASE("every element of a fully sharded store is one rank's own, at one place of its buffers") {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const int ranks : {2, 3}) {
      CAPTURE(ranks);
      ExecutionContext context(1, device());
      ParameterStore whole;
      declare_model(whole);
      whole.finalize(context, compute, 16, true);
      whole.initialize(3);
      const std::vector<float> expected = host_values(whole, whole.master());
      std::map<std::string, std::vector<int>> owners;
      for (int rank = 0; rank < ranks; ++rank) {
        ParameterStore store;
        declare_model(store);
        store.shard({rank, ranks, 100, /*everything=*/true});
        store.finalize(context, compute, ranks * kLineElements, true);
        store.initialize(3);
        CHECK(store.gathers());
        CHECK(store.gradients().elements() == store.trained_elements() / ranks);
        CHECK(store.moment1().elements() == store.trained_elements() / ranks);
        CHECK(store.master().elements() < whole.master().elements() / ranks + 500);
        const std::vector<float> master = host_values(store, store.master());
        std::vector<bool> taken(master.size());
        for (const auto& parameter : store.parameters()) {
          auto& own = owners[parameter->name()];
          own.resize(static_cast<std::size_t>(parameter->elements()));
          const std::int64_t first = whole.find(parameter->name())->offset();
          for (const OwnRun& run : parameter->own_runs())
            for (std::int64_t i = 0; i < run.flat.elements(); ++i) {
              const std::int64_t element = run.flat.begin + i - parameter->offset();
              ++own[static_cast<std::size_t>(element)];
              const auto place = static_cast<std::size_t>(run.master + i);
              CHECK(master[place] == expected[static_cast<std::size_t>(first + element)]);
              CHECK_FALSE(taken[place]);
              taken[place] = true;
            }
        }
      }
      for (const auto& [name, counts] : owners) {
        CAPTURE(name);
        const int expected_owners = name.ends_with("router.bias") ? ranks : 1;
        CHECK(std::ranges::all_of(counts, [&](int count) { return count == expected_owners; }));
      }
    }
}

}  // namespace
}  // namespace sortie::trainer::test
