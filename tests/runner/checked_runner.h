// A runner to which check requests are sent.
#pragma once

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/runner_client.h"

namespace sortie::test {

/// A runner that has received and answered Hello.
struct CheckedRunner {
  explicit CheckedRunner(std::vector<std::string> environment = {})
      : client(SORTIE_RUNNER_BINARY, std::move(environment)) {
    client.send(wire::Hello{wire::kProtocolVersion, ""});
    REQUIRE(client.expect<wire::Hello>());
  }

  /// Returns all parts of the answer except "at" and "done".
  std::vector<nlohmann::json> ask(
      const nlohmann::json& request,
      std::chrono::milliseconds limit = std::chrono::milliseconds(60000)) {
    client.send(wire::CheckRequest{request.dump()});
    std::vector<nlohmann::json> parts;
    for (;;) {
      const auto report = client.expect<wire::CheckReport>(limit);
      REQUIRE(report);
      nlohmann::json part = nlohmann::json::parse(report->json);
      if (part["part"] == "done") {
        CHECK(part["kind"] == request["kind"]);
        return parts;
      }
      if (part["part"] != "at") parts.push_back(std::move(part));
    }
  }

  nlohmann::json part_of(const nlohmann::json& request, const std::string& name) {
    for (nlohmann::json& part : ask(request))
      if (part["part"] == name) return part;
    FAIL("no part " << name);
    return {};
  }

  RunnerClient client;
};

inline nlohmann::json look() {
  return {{"kind", "look"}, {"mpi", "off"}};
}

}  // namespace sortie::test
