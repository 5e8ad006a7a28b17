// What a host says of itself in a check, parsed from its CheckReports. A host is not trusted: every
// text is bounded and printable from here on, lists are bounded, numbers are numbers, and what was
// not asked for is dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher::check {

struct HostFacts {
  std::string hostname, kernel, machine;  // kernel: the release, "6.1.0-18-amd64"
  std::string machine_id;                 // equal for two names of one machine; empty = unknown
  std::uint64_t cpus = 0, memory_bytes = 0, available_bytes = 0;
  std::optional<std::uint64_t> memlock, open_files, open_files_hard;  // nothing: unlimited
  bool infiniband = false;
  std::string cgroup_error;
  bool cgroup_writable = false;
  std::string run_base, run_error;
  std::uint64_t runs_alive = 0, runs_left = 0, cgroups_left = 0;
  std::string ssh_address;             // of its sshd, as the last hop saw it
  std::vector<std::string> addresses;  // "eth0 10.1.0.2/24"
};

struct FolderFacts {
  std::string role, path, at, error;
  bool exists = false, read_only = false, tried = false, writable = false;
  std::uint64_t free_bytes = 0, total_bytes = 0, free_inodes = 0, total_inodes = 0, sync_us = 0;
};

struct FileFacts {
  std::string path, error, hash;
  std::uint64_t size = 0;
};

struct ProgramFacts {
  std::string name, found, error;
  bool work_dir = false;
  std::vector<std::string> missing;  // libraries
};

struct MpiFacts {
  std::string pmix, pmix_error, mpi, mpi_error, error;
};

struct GpuFacts {
  std::uint64_t driver = 0, devices = 0, rocm = 0;  // as the drivers list them
  std::string smi, smi_error;                       // path of nvidia-smi
  std::vector<std::string> names;                   // as nvidia-smi lists them
  std::string driver_version;                       // NVIDIA's, "580.65.06"; empty = not known
};

struct ContainerFacts {
  std::string client, version, problem, error;  // problem: absent | denied | stopped | other
  std::string root;                             // where it keeps images
  std::string image_id, image_error;
  bool rootless = false, gpu_runtime = false, image_present = false;
  std::uint64_t free_bytes = 0, total_bytes = 0, image_bytes = 0;
  std::vector<std::string> missing_mounts;  // "PATH: why"
};

struct PortFacts {
  std::uint64_t port = 0;
  std::string error;
};

struct PeerFacts {
  std::string name, error;
  std::uint64_t connect_us = 0, round_trip_us = 0, mtu = 0, own_mtu = 0;
  bool mtu_reported = false;
};

struct BandwidthFacts {
  std::string name, error;
  std::uint64_t bytes = 0, us = 0;
};

/// One way of a link to a host of another site.
struct WayFacts {
  std::uint64_t bytes = 0, us = 0, segments = 0, again = 0;
};

struct LinkFacts {
  std::string name, error, rate_error;  // rate_error: of a host that was reached
  std::uint64_t round_trip_us = 0, mtu = 0, own_mtu = 0;
  bool mtu_reported = false;
  WayFacts out, back;
};

struct HostReport {
  std::optional<HostFacts> host;
  std::vector<FolderFacts> folders;
  std::vector<FileFacts> files;
  std::optional<ProgramFacts> program;
  std::optional<MpiFacts> mpi;
  std::optional<GpuFacts> gpus;
  std::optional<PortFacts> port;
  std::optional<ContainerFacts> container;
  std::optional<std::uint64_t> listen_port;
  std::string listen_error;
  std::optional<std::int64_t> clock_us;  // the last one
  std::vector<PeerFacts> peers;
  std::optional<BandwidthFacts> bandwidth;
  std::vector<LinkFacts> links;      // to hosts of other sites
  std::string at;                    // what it was about to look at
  std::string done;                  // kind of the request that is answered in full
  std::size_t parts = 0, bytes = 0;  // taken so far
};

inline constexpr std::size_t kMaxReportBytes = 256u << 10;
inline constexpr std::size_t kMaxReportParts = 8192;
inline constexpr std::size_t kMaxReportTotal = 8u << 20;  // bytes of all parts of a host

/// Adds one CheckReport. ErrorCode::protocol for what no runner sends.
Result<> add_part(HostReport& report, std::string_view json);

}  // namespace sortie::launcher::check
