#include "runner/tunnel/link_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "common/base/split.h"

namespace sortie::runner::tunnel {
namespace {

constexpr std::string_view kPrefix = "sortie-";
constexpr std::size_t kDigits = 8;
constexpr std::size_t kMaxNetworks = 4096;
constexpr int kNetAdmin = 12;  // CAP_NET_ADMIN

/// One request about a link; its attributes are in the order of put().
struct LinkRequest {
  nlmsghdr header{};
  ifinfomsg info{};
  std::array<char, 128> attributes{};

  LinkRequest(std::uint16_t type, std::uint16_t flags) {
    header.nlmsg_len = NLMSG_LENGTH(sizeof info);
    header.nlmsg_type = type;
    header.nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags);
    info.ifi_family = AF_UNSPEC;
  }

  /// Appends an attribute and returns where it began.
  rtattr* put(std::uint16_t type, std::string_view bytes) {
    auto* attribute = reinterpret_cast<rtattr*>(reinterpret_cast<char*>(this) + header.nlmsg_len);
    attribute->rta_type = type;
    attribute->rta_len = static_cast<std::uint16_t>(RTA_LENGTH(bytes.size()));
    std::memcpy(RTA_DATA(attribute), bytes.data(), bytes.size());
    header.nlmsg_len += RTA_ALIGN(attribute->rta_len);
    return attribute;
  }
};

/// Sends the request. Returns the kernel's errno, 0 on success.
int ask_kernel(const LinkRequest& request) {
  const Fd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!socket) return errno;
  if (::send(socket.get(), &request, request.header.nlmsg_len, 0) < 0) return errno;
  std::array<char, 4096> answer;
  const ssize_t count = ::recv(socket.get(), answer.data(), answer.size(), 0);
  if (count < 0) return errno;
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer.data());
  if (static_cast<std::size_t>(count) < NLMSG_LENGTH(sizeof(nlmsgerr)) ||
      header->nlmsg_type != NLMSG_ERROR)
    return EPROTO;
  return -static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
}

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::memcpy(request.ifr_name, name.data(), std::min<std::size_t>(name.size(), IFNAMSIZ - 1));
  return request;
}

void put_address(ifreq& request, in_addr address) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr = address;
  std::memcpy(&request.ifr_addr, &v4, sizeof v4);
}

Error device_error(int error, const std::string& name, const char* what) {
  return os_error(error, fmt::format("{}: {}", name, what));
}

/// Reads a field of eight hexadecimal digits, in the kernel's byte order.
bool take_word(std::string_view& line, std::uint32_t& word) {
  const std::size_t begin = line.find_first_not_of("\t ");
  if (begin == line.npos) return false;
  line.remove_prefix(begin);
  const std::string_view field = line.substr(0, line.find_first_of("\t "));
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), word, 16);
  line.remove_prefix(field.size());
  return error == std::errc() && end == field.data() + field.size();
}

bool skip_field(std::string_view& line) {
  const std::size_t begin = line.find_first_not_of("\t ");
  if (begin == line.npos) return false;
  line.remove_prefix(begin);
  line.remove_prefix(std::min(line.size(), line.find_first_of("\t ")));
  return true;
}

}  // namespace

bool is_device_name(std::string_view name) {
  return name.size() == kPrefix.size() + kDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == name.npos;
}

bool may_configure_networks() {
  const Result<std::string> status = read_file("/proc/self/status", 64u << 10);
  if (!status) return ::geteuid() == 0;
  const std::size_t at = status->find("CapEff:\t");
  if (at == std::string::npos) return false;
  std::uint64_t set = 0;
  const char* digits = status->data() + at + 8;
  std::from_chars(digits, status->data() + status->size(), set, 16);
  return (set >> kNetAdmin & 1) != 0;
}

Result<> create_kernel_device(const std::string& name) {
  LinkRequest request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
  request.put(IFLA_IFNAME, std::string_view(name.c_str(), name.size() + 1));
  rtattr* kind = request.put(IFLA_LINKINFO, "");
  request.put(IFLA_INFO_KIND, "wireguard");
  kind->rta_len = static_cast<std::uint16_t>(
      reinterpret_cast<char*>(&request) + request.header.nlmsg_len - reinterpret_cast<char*>(kind));
  const int error = ask_kernel(request);
  if (error == 0) return {};
  if (error == EOPNOTSUPP || error == ENODEV)
    return fail(ErrorCode::unsupported, "this kernel has no WireGuard");
  return std::unexpected(device_error(error, name, "the device can not be made"));
}

Result<> delete_device(const std::string& name) {
  LinkRequest request(RTM_DELLINK, 0);
  request.put(IFLA_IFNAME, std::string_view(name.c_str(), name.size() + 1));
  const int error = ask_kernel(request);
  if (error == 0 || error == ENODEV) return {};
  return std::unexpected(device_error(error, name, "the device can not be removed"));
}

Result<> configure_device(const std::string& name, const std::string& address, int prefix,
                          int mtu) {
  in_addr own{}, mask{};
  if (::inet_pton(AF_INET, address.c_str(), &own) != 1 || prefix < 8 || prefix > 30)
    return fail(ErrorCode::protocol, fmt::format("{}: no address: {}/{}", name, address, prefix));
  mask.s_addr = htonl(~std::uint32_t{0} << (32 - prefix));
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return std::unexpected(os_error(errno, "socket"));
  ifreq request = request_for(name);
  put_address(request, own);
  if (::ioctl(socket.get(), SIOCSIFADDR, &request) != 0)
    return std::unexpected(device_error(errno, name, "no address"));
  put_address(request, mask);
  if (::ioctl(socket.get(), SIOCSIFNETMASK, &request) != 0)
    return std::unexpected(device_error(errno, name, "no network"));
  request = request_for(name);
  request.ifr_mtu = mtu;
  if (::ioctl(socket.get(), SIOCSIFMTU, &request) != 0)
    return std::unexpected(device_error(errno, name, fmt::format("MTU {}", mtu).c_str()));
  request = request_for(name);
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0)
    return std::unexpected(device_error(errno, name, "its state"));
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  if (::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0)
    return std::unexpected(device_error(
        errno, name, "the device does not come up (another program may have its UDP port)"));
  return {};
}

Result<> forward_packets_of(const std::string& name) {
  const std::string path = fmt::format("/proc/sys/net/ipv4/conf/{}/forwarding", name);
  const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), "1", 1) != 1) return std::unexpected(os_error(errno, path));
  return {};
}

std::vector<std::string> tunnel_devices() {
  const std::unique_ptr<struct if_nameindex, void (*)(struct if_nameindex*)> list(
      ::if_nameindex(), ::if_freenameindex);
  std::vector<std::string> names;
  for (const struct if_nameindex* entry = list.get(); entry && entry->if_index != 0; ++entry)
    if (is_device_name(entry->if_name)) names.emplace_back(entry->if_name);
  return names;
}

std::vector<std::string> networks_in(std::string_view table) {
  std::vector<std::string> networks;
  bool heading = true;
  while (!table.empty() && networks.size() < kMaxNetworks) {
    std::string_view line = take_line(table);
    if (std::exchange(heading, false)) continue;
    // Iface Destination Gateway Flags RefCnt Use Metric Mask
    std::uint32_t destination = 0, mask = 0;
    bool good = skip_field(line) && take_word(line, destination);
    for (int i = 0; good && i < 5; ++i) good = skip_field(line);
    if (!good || !take_word(line, mask) || mask == 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &destination, text.data(), text.size());
    networks.push_back(fmt::format("{}/{}", text.data(), std::popcount(mask)));
  }
  return networks;
}

}  // namespace sortie::runner::tunnel
