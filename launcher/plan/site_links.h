// Links between sites as measured by `sortie check`, in one file for all jobs of this user:
// <state>/site_links.json, where <state> is $XDG_STATE_HOME/sortie or ~/.local/state/sortie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/hostlist.h"

namespace sortie::launcher {

/// A measured link from one site to another, one direction.
struct SiteLink {
  std::string from, to;            // sites
  std::string from_host, to_host;  // the measured hosts
  bool works = false;              // data arrived, on a connection opened by either side
  bool reached = false;            // `from_host` could open a connection to `to_host`
  std::string error;               // reason if not
  double byte_s = 0.0;             // from -> to, all streams together
  double round_trip = 0.0;         // seconds, best of several
  double loss = 0.0;               // share of retransmitted segments
  std::uint64_t mtu = 0;           // largest packet that arrives; 0 = unknown
  bool mtu_vanishes = false;       // larger packets are dropped without an ICMP error
  std::int64_t port = 0;           // on which `to_host` listened
  double time = 0.0;               // Unix seconds
  bool operator==(const SiteLink&) const = default;
};

nlohmann::ordered_json site_link_json(const SiteLink& link);
/// ErrorCode::data if the object is malformed or has impossible values.
Result<SiteLink> parse_site_link(const nlohmann::json& object);

/// Returns the newest link of `known` in each direction of each pair of sites, among links between
/// `hosts`. Omits pairs without one.
std::vector<SiteLink> links_between(const std::vector<SiteLink>& known,
                                    const std::vector<config::HostSlots>& hosts);

/// Merges `fresh` into `known`: a link replaces one between the same hosts and sites. Keeps the
/// newest 1024.
std::vector<SiteLink> with_links(std::vector<SiteLink> known, const std::vector<SiteLink>& fresh);

/// Returns an empty list if the file does not exist.
Result<std::vector<SiteLink>> read_site_links(const std::filesystem::path& file);
/// Merges `fresh` into the file, which is replaced atomically; see with_links().
Result<> keep_site_links(const std::filesystem::path& file, const std::vector<SiteLink>& fresh);
/// The file of this user. ErrorCode::config without HOME.
Result<std::filesystem::path> site_links_file();

}  // namespace sortie::launcher
