// Tests of what ranks ask and answer when a collective makes no progress, without ranks.
#include "trainer/parallel/wait_question.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace sortie::trainer;

namespace {

using Place = WaitAnswer::Place;
using Answers = std::vector<std::optional<WaitAnswer>>;

WaitQuestion sum_of_world(int ranks, bool failed = false) {
  return {.rank = 0,
          .collective = {.group = "world",
                         .first = 0,
                         .size = ranks,
                         .operation = "all-reduce",
                         .number = 17},
          .failed = failed};
}

const WaitAnswer kThere{};
const std::vector<std::string> kHosts = {"h01", "h01", "h02", "h02", "h03", "h03"};
const std::string kSee =
    "; see what happened there, or set SORTIE_COMM_TIMEOUT to more "
    "seconds";

}  // namespace

TEST_CASE("a question and an answer survive the way as text, other texts are none") {
  WaitQuestion question = sum_of_world(4, true);
  question.rank = 3;
  question.collective.message = true;
  const auto read = WaitQuestion::parse(question.to_text());
  REQUIRE(read);
  CHECK(read->rank == 3);
  CHECK(read->failed);
  CHECK(read->collective.message);
  CHECK(read->collective.same_group(question.collective));
  CHECK(read->collective.text() == "all-reduce 17 of group world (4 ranks)");
  const auto answer =
      WaitAnswer::parse(WaitAnswer{Place::elsewhere, "barrier 3 of group data"}.to_text());
  REQUIRE(answer);
  CHECK(answer->place == Place::elsewhere);
  CHECK(answer->text == "barrier 3 of group data");
  for (const char* text : {"", "[]", "{}", "{\"place\":\"asleep\",\"text\":\"\"}",
                           "{\"place\":1,\"text\":\"\"}", "{\"place\":\"there\",\"text\":2}"})
    CHECK_FALSE(WaitAnswer::parse(text));
  for (const char* text : {"", "7", "{\"rank\":0}", "{\"rank\":\"0\",\"group\":\"world\"}"})
    CHECK_FALSE(WaitQuestion::parse(text));
}

TEST_CASE("the texts of a question are cut to what the launcher's store holds") {
  WaitQuestion question = sum_of_world(2);
  question.collective.group = std::string(9000, 'g');
  CHECK(question.to_text().size() < 1000);
  CHECK(WaitAnswer{Place::elsewhere, std::string(9000, 'x')}.to_text().size() < 1000);
}

TEST_CASE("a name means the same collective on both sides of a message") {
  const CollectiveName sent{.group = "a, 0 to 1", .operation = "send", .message = true};
  CollectiveName received = sent;
  received.operation = "receive";
  CHECK(sent.same_operation(received));
  received.message = false;
  CHECK_FALSE(sent.same_operation(received));
}

TEST_CASE("ranks that do not answer are named first, then those in their own work") {
  CHECK(describe_answers(
            sum_of_world(6), {0, 1, 2, 3, 4, 5},
            Answers{kThere, WaitAnswer{Place::elsewhere, "all-gather 3 of group tensor (2 ranks)"},
                    std::nullopt, std::nullopt, WaitAnswer{Place::nowhere, "step 12, data"},
                    WaitAnswer{Place::blocked}},
            kHosts) ==
        "ranks 2-3 (h02) do not answer: their processes are stopped or have ended, or their hosts "
        "can not be reached; rank 5 (h03) is blocked in a call of the GPU's driver; rank 4 (h03) "
        "has not begun it and is in no collective (step 12, data); rank 1 (h01) has not begun it "
        "and waits in all-gather 3 of group tensor (2 ranks)" +
            kSee);
}

TEST_CASE("a rank whose host is unknown is named without it") {
  CHECK(describe_answers(sum_of_world(2), {0, 1}, Answers{kThere, WaitAnswer{Place::nowhere}},
                         {}) == "rank 1 has not begun it and is in no collective" + kSee);
}

TEST_CASE("a GPU that has not reached the collective is told from a rank that has not begun it") {
  CHECK(describe_answers(sum_of_world(2), {0, 1}, Answers{kThere, WaitAnswer{Place::queued}},
                         kHosts) ==
        "the GPU of rank 1 (h01) has not reached it: earlier work on that GPU has not ended" +
            kSee);
  CHECK(describe_answers(
            sum_of_world(3), {0, 1, 2},
            Answers{kThere, WaitAnswer{Place::queued, "all-reduce 3 of group data (2 ranks)"},
                    WaitAnswer{Place::queued, "all-reduce 3 of group data (2 ranks)"}},
            kHosts) ==
        "the GPUs of ranks 1-2 (h[01-02]) have not reached all-reduce 3 of group data (2 ranks): "
        "earlier work on these GPUs has not ended" +
            kSee);
}

TEST_CASE("ranks that issue different collectives are told so, with both names") {
  CHECK(describe_answers(
            sum_of_world(2), {0, 1},
            Answers{kThere, WaitAnswer{Place::differs, "all-gather 17 of group world (2 ranks)"}},
            kHosts) ==
        "rank 1 (h01) is in all-gather 17 of group world (2 ranks) instead: ranks do not issue the "
        "same collectives (SORTIE_COMM_DEBUG=1 finds the first difference)" +
            kSee);
}

TEST_CASE("if all ranks have come, none of them is named") {
  CHECK(describe_answers(sum_of_world(2), {0, 1}, Answers{kThere, kThere}, kHosts) ==
        "all 2 ranks have come to it: the network or a GPU is at fault, not the program of a rank; "
        "NCCL_DEBUG=INFO shows more");
}

TEST_CASE("ranks outside of the group are named only if a member may wait for them") {
  const Answers one_waits{kThere, WaitAnswer{Place::elsewhere, "all-reduce 2 of group b (2 ranks)"},
                          std::nullopt, WaitAnswer{Place::elsewhere, "something"}};
  CHECK(describe_answers(sum_of_world(2), {0, 1}, one_waits, kHosts) ==
        "rank 1 (h01) has not begun it and waits in all-reduce 2 of group b (2 ranks); outside of "
        "the group: rank 2 (h02) does not answer: its process is stopped or has ended, or its host "
        "can not be reached" +
            kSee);
  const Answers none_waits{kThere, WaitAnswer{Place::nowhere}, std::nullopt};
  CHECK(describe_answers(sum_of_world(2), {0, 1}, none_waits, kHosts) ==
        "rank 1 (h01) has not begun it and is in no collective" + kSee);
}

TEST_CASE("after an error of the library the ranks that are gone are named, not those that work") {
  const Answers one_gone{kThere, WaitAnswer{Place::nowhere}, std::nullopt};
  CHECK(describe_answers(sum_of_world(2, true), {0, 1}, one_gone, kHosts) ==
        "rank 2 (h02) does not answer: its process is stopped or has ended, or its host can not be "
        "reached; see what happened there");
  const Answers all_work{kThere, WaitAnswer{Place::nowhere}, WaitAnswer{Place::queued}};
  CHECK(describe_answers(sum_of_world(2, true), {0, 1}, all_work, kHosts) ==
        "all 3 ranks of the run answer: the network or a GPU is at fault, not the program of a "
        "rank; NCCL_DEBUG=INFO shows more");
}

TEST_CASE("many ranks at different places are counted") {
  Answers answers{kThere};
  std::vector<int> members{0};
  for (int rank = 1; rank < 10; ++rank) {
    members.push_back(rank);
    answers.push_back(WaitAnswer{Place::nowhere, "step " + std::to_string(rank)});
  }
  const std::string text = describe_answers(sum_of_world(10), members, answers, {});
  CHECK(text.find("rank 6 has not begun it and is in no collective (step 6); 3 more ranks have not "
                  "come to it; see") != std::string::npos);
  CHECK(text.find("rank 7") == std::string::npos);
}
