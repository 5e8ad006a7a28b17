// answer_checks(): a fake runner's side of a check.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fake_hosts.h"

namespace sortie::test {

/// Returns the parts that answer a request, without the last one, "done"; nullopt = no answer.
using CheckAnswer = std::function<std::optional<std::vector<nlohmann::json>>(
    const std::string& kind, const nlohmann::json& request)>;

/// Answers Hello and the requests of a check, until the launcher ends the conversation.
inline boost::asio::awaitable<void> answer_checks(FakeRunner& runner, CheckAnswer answer) {
  for (;;) {
    const std::optional<wire::Message> message = co_await runner.next();
    if (!message) co_return;
    if (std::holds_alternative<wire::Hello>(*message))
      runner.send(wire::Hello{wire::kProtocolVersion, ""});
    const auto* asked = std::get_if<wire::CheckRequest>(&*message);
    if (!asked) continue;
    const auto request = nlohmann::json::parse(asked->json);
    const std::string kind = request["kind"];
    const auto parts = answer(kind, request);
    if (!parts) continue;
    for (const nlohmann::json& part : *parts) runner.send(wire::CheckReport{part.dump()});
    const nlohmann::json done = {{"part", "done"}, {"kind", kind}};
    runner.send(wire::CheckReport{done.dump()});
  }
}

/// The answer to a clock request, by a clock that is `ahead` of this machine's.
inline nlohmann::json clock_part(std::chrono::seconds ahead = std::chrono::seconds(0)) {
  const auto now = std::chrono::system_clock::now().time_since_epoch() + ahead;
  return {{"part", "clock"},
          {"unix_us", std::chrono::duration_cast<std::chrono::microseconds>(now).count()}};
}

}  // namespace sortie::test
