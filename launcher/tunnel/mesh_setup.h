// MeshSetup: the protocol that sets up a mesh, step by step: computes orders for every host and
// evaluates their reports. No I/O: the owner of the connections to the hosts (an attempt, a check)
// sends the orders and receives the reports. runner/tunnel/README.md describes the JSON objects.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "launcher/tunnel/mesh.h"

namespace sortie::launcher::tunnel {

class MeshSetup {
 public:
  struct Options {
    std::string run_id;
    std::uint32_t attempt = 1;
    std::int64_t port = 51820;
  };
  /// `hosts` have names and addresses; the steps fill in the rest.
  MeshSetup(std::vector<MeshHost> hosts, Options options);

  /// Returns the orders of the current step, one per host.
  std::vector<std::string> orders() const;
  /// Name of the current step: "open", "survey", "raise" or "prove".
  const char* step() const;
  /// Time limit for the answer of a host.
  std::chrono::milliseconds patience() const;
  /// Handles the answers to the orders, one per host in the same order. Returns true if a further
  /// step follows. ErrorCode::protocol: an invalid report. Other errors: the hosts can not form the
  /// mesh.
  Result<bool> take(const std::vector<std::string>& reports);

  const std::vector<MeshHost>& hosts() const { return hosts_; }
  /// Valid after the survey.
  const Mesh& mesh() const { return mesh_; }
  const Contacts& contacts() const { return contacts_; }
  /// Name of the tunnel device of a host.
  std::string device(std::size_t host) const;

 private:
  enum class Step { open, survey, raise, prove };
  nlohmann::json order_for(std::size_t host) const;
  nlohmann::json peers_of(std::size_t host) const;
  int wait_before(std::size_t host, std::size_t other) const;
  Result<> take_open(std::size_t host, const nlohmann::json& report);
  Result<> take_survey(std::size_t host, const nlohmann::json& report);
  Result<> take_raise(std::size_t host, const nlohmann::json& report);
  Result<> judge(const std::vector<nlohmann::json>& reports) const;

  std::vector<MeshHost> hosts_;
  const Options options_;
  const std::string token_;
  Step step_ = Step::open;
  Contacts contacts_;
  Mesh mesh_;
  std::vector<std::uint16_t> inner_ports_;
};

}  // namespace sortie::launcher::tunnel
