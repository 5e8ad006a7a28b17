// Events of a training run: JSON in both directions, and log lines.
#include "common/training/event.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace sortie::training {
namespace {

using Json = nlohmann::json;

std::vector<Event> samples() {
  StartEvent start;
  start.architecture = "llama";
  start.precision = "f32";
  start.isa = "AVX2";
  start.cpu = "a CPU";
  start.parameters = 1330000;
  start.flops_per_token = 8e6;
  start.threads = 1;
  start.world_size = 2;
  start.global_batch_size = 8;
  start.gradient_accumulation_steps = 1;
  start.sequence_length = 256;
  start.step = 100;
  start.steps = 2000;
  start.save_dir = "/c";
  start.resumed_from = "/c/step-00000100";
  start.first_run = "20260101-000000-aaaa";
  start.best_loss = 2.5;
  start.best_step = 90;
  start.planned_memory = {{"total", 30}, {"weights", 10}};
  StepEvent step;
  step.step = 120;
  step.steps = 2000;
  step.loss = 2.34567;
  step.lr = 0.001;
  step.grad_norm = 0.5;
  step.step_ms = 83.2;
  step.tokens_per_s = 15000;
  step.flops = 3.21e11;
  step.mean_tokens_per_s = 12345;
  step.eta_s = 65;
  step.skipped = true;
  step.consumed_tokens = 245760;
  step.balance_loss = 0.25;
  step.dropped_choices = 0.125;
  step.batch_size = 8;
  DoneEvent done;
  done.step = done.steps = 2000;
  done.loss = 1.25;
  done.validation_loss = 1.5;
  done.seconds = 120;
  done.peak_memory_bytes = 1200000000;
  done.memory = {{"total", 1200000000}};
  done.planned_memory = {{"total", 1250000000}};
  done.events_dropped = 3;
  return {
      start,
      step,
      EvalEvent{200, 2.25, 1.5, 2.25, 200},
      CheckpointEvent{200, "/c/step-00000200", 2000000, 1.0, 0.1, true, true},
      MemoryCheckpointEvent{220, 1000000, 0.05},
      RollbackEvent{20, 15, 40, "the loss of 9 is 6.0 times its mean of 1.5", "/c/step-00000015"},
      RoundEvent{3, 150, 7, 2, 1, 1, 1000, 2000, 2900, 12.5, 3.0, 3.5, 0.72, 31.0},
      FaultEvent{30, 2, "h2", "replica_mismatch"},
      NoteEvent{"words"},
      ProfileEvent{3, "h1", "/tmp/trace.json"},
      done};
}

TEST_CASE("every event comes back from its JSON as it was") {
  CHECK(samples().size() == std::variant_size_v<Event>);
  for (const Event& event : samples()) {
    const Json there = to_json(event);
    CAPTURE(there.dump());
    const auto back = read_event(Json::parse(there.dump()));
    REQUIRE(back);
    CHECK(back->index() == event.index());
    CHECK(to_json(*back).dump() == there.dump());  // NaN and null are the same in JSON
  }
}

TEST_CASE("numbers that are not known travel as null and come back as such") {
  const Json there = Json::parse(to_json(StepEvent{}).dump());
  CHECK(there["loss"].is_null());
  CHECK_FALSE(there.contains("balance_loss"));
  CHECK_FALSE(there.contains("dropped_choices"));
  const auto back = read_event(there);
  REQUIRE(back);
  CHECK(std::isnan(std::get<StepEvent>(*back).loss));
  CHECK_FALSE(std::get<StepEvent>(*back).balance_loss);
}

TEST_CASE("events of any shape: members of another type keep their default, nothing breaks") {
  for (const Json& odd :
       {Json("x"), Json(3), Json::array(), Json::object(), Json{{"type", 3}}, Json{{"type", "x"}}})
    CHECK_FALSE(read_event(odd));
  const auto step = read_event({{"type", "step"},
                                {"step", 1e300},
                                {"steps", "many"},
                                {"loss", Json::array()},
                                {"skipped", "yes"},
                                {"balance_loss", "x"}});
  REQUIRE(step);
  const auto& event = std::get<StepEvent>(*step);
  CHECK(event.step == 9007199254740992);
  CHECK(event.steps == 0);
  CHECK(std::isnan(event.loss));
  CHECK_FALSE(event.skipped);
  const auto done = read_event({{"type", "done"}, {"memory", {{"total", "x"}, {"weights", 3.7}}}});
  REQUIRE(done);
  CHECK(std::get<DoneEvent>(*done).memory == MemoryParts{{"weights", 3}});
}

TEST_CASE("the lines of a log") {
  const auto events = samples();
  CHECK(event_line(events[0]) ==
        "training llama with 1.33M parameters, f32 on a CPU (AVX2), 2 ranks x 1 thread, 8 x 256 "
        "tokens a step; steps 101 to 2000; checkpoints in /c");
  CHECK(event_line(events[1]) ==
        "step    120/2000  loss  2.3457  lr 1.00e-03  grad  0.500   12.3k tokens/s    321GFLOP/s  "
        "   83 ms  ETA 1m05s  dropped 12.5 %  SKIPPED");
  CHECK(event_line(events[2]) == "step    200  validation loss 2.2500  (the lowest so far)");
  CHECK(event_line(EvalEvent{300, 2.5, 1.5, 2.25, 200}) ==
        "step    300  validation loss 2.5000  (lowest: 2.2500 at step 200)");
  CHECK(event_line(events[3]) ==
        "step    200  checkpoint of the lowest validation loss /c/step-00000200, suspect (2.00MB "
        "in 1.0 s, training blocked for 0.10 s)");
  CHECK(event_line(events[6]) ==
        "step    150  round 3 of 2 sites: 1.00kB sent, 2.00kB received, 12.5 s, 3.5 s of them "
        "waiting, "
        "72 % useful, 1 without a change of its own, 1 exchange called off before");
  CHECK(event_line(events.back()) ==
        "trained to step 2000 of 2000 in 2m00s, loss 1.2500, validation loss 1.5000, peak memory "
        "1.20GB a rank (planned: 1.25GB)");
}

TEST_CASE("a run that has nothing left to train names no loss that it does not have") {
  StartEvent start;
  start.step = start.steps = 20;
  CHECK(event_line(start) ==
        "training is complete: step 20 of 20; no checkpoints: trainer.save_dir is not set");
  DoneEvent done;
  done.step = done.steps = 20;
  done.seconds = 0;
  CHECK(event_line(done) == "trained to step 20 of 20, peak memory 0B a rank");
  // A config whose train_iterations were lowered.
  start.step = done.step = 30;
  done.loss = 1.5;
  CHECK(event_line(start) ==
        "nothing to train: step 30 is past the last step 20; no checkpoints: trainer.save_dir is "
        "not set");
  CHECK(event_line(done) == "already past step 20: at step 30, peak memory 0B a rank");
}

}  // namespace
}  // namespace sortie::training
