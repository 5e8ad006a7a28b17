// The conversation that makes a mesh: orders for every host, and what follows from their reports,
// step by step. It does no I/O: whoever has connections to the hosts (an attempt, a check) carries
// orders and reports. runner/tunnel/README.md has the objects.
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
  /// `hosts` with names and addresses; the rest is found out.
  MeshSetup(std::vector<MeshHost> hosts, Options options);

  /// Of the present step, one per host.
  std::vector<std::string> orders() const;
  /// What it does, for people: "open", "survey", "raise", "prove".
  const char* step() const;
  /// How long a host may take for its answer.
  std::chrono::milliseconds patience() const;
  /// The answers to those orders, one per host in their order. True when there is a next step.
  /// ErrorCode::protocol: a report outside the grammar; else what hosts can not do.
  Result<bool> take(const std::vector<std::string>& reports);

  const std::vector<MeshHost>& hosts() const { return hosts_; }
  /// From the survey on.
  const Mesh& mesh() const { return mesh_; }
  const Contacts& contacts() const { return contacts_; }
  /// The device of a host.
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
