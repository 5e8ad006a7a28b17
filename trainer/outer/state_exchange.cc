#include "trainer/outer/state_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

namespace sortie::trainer::outer {
namespace {

// Tags of links; those of the exchange are small numbers.
constexpr std::uint32_t kHelloTag = 0xfff0'0000, kWishTag = 0xfff0'0001, kStateTag = 0xfff0'0002;
constexpr std::size_t kPieceBytes = std::size_t{16} << 20;  // of a state, in one message

using Hello = StateMessages::Hello;
using Wish = StateMessages::Wish;

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// Returns the member to copy the state from: the first of the site's donors that has it, else the
/// first member that has it.
std::optional<std::size_t> choose_donor(const training::OuterExchange& order,
                                        const std::vector<Hello>& hellos, const StateOffer& offer,
                                        std::size_t self) {
  const auto has = [&](std::size_t member) {
    return member != self && hellos[member].lacks_state == 0;
  };
  for (const std::string& name : offer.donors)
    for (std::size_t member = 0; member < hellos.size(); ++member)
      if (has(member) && order.members[member].site == name) return member;
  for (std::size_t member = 0; member < hellos.size(); ++member)
    if (has(member)) return member;
  return std::nullopt;
}

Result<> send_state(SiteLinks& links, std::size_t to, const CopiedState& state) {
  SORTIE_TRY(links.send(to, kStateTag, state.numbers));
  for (const std::span<float> vector : state.vectors) {
    const auto bytes = std::as_bytes(vector);
    for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes)
      SORTIE_TRY(
          links.send(to, kStateTag, bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at))));
  }
  return {};
}

Result<> receive_state(SiteLinks& links, std::size_t from, const CopiedState& state) {
  SORTIE_TRY(links.receive(from, kStateTag, state.numbers));
  for (const std::span<float> vector : state.vectors) {
    const auto bytes = std::as_writable_bytes(vector);
    for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes)
      SORTIE_TRY(links.receive(from, kStateTag,
                               bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at))));
  }
  return {};
}

/// Returns the most frequent hash among members with a state; in a tie, that of the first such
/// member. 0 = none is known.
std::uint64_t usual_hash(const std::vector<Hello>& hellos) {
  std::map<std::uint64_t, int> counts;
  std::uint64_t usual = 0;
  for (const Hello& hello : hellos)
    if (hello.lacks_state == 0 && hello.hash != 0) ++counts[hello.hash];
  for (const Hello& hello : hellos)
    if (hello.lacks_state == 0 && hello.hash != 0 &&
        (usual == 0 || counts[hello.hash] > counts[usual]))
      usual = hello.hash;
  return usual;
}

}  // namespace

Result<StateOutcome> agree_on_state(SiteLinks& links, const training::OuterExchange& order,
                                    std::size_t self, const StateOffer& offer,
                                    StateMessages& messages,
                                    const std::function<Result<CopiedState>()>& state) {
  const std::size_t members = order.members.size();
  std::vector<Hello>& hellos = messages.hellos;
  std::vector<Wish>& wishes = messages.wishes;
  hellos.assign(members, {});
  wishes.assign(members, {});
  hellos[self] = {order.epoch, offer.hash, offer.lacks_state ? 1u : 0u};
  for (std::size_t peer = 0; peer < members; ++peer)
    if (peer != self) SORTIE_TRY(links.send(peer, kHelloTag, bytes_of(hellos[self])));
  for (std::size_t peer = 0; peer < members; ++peer) {
    if (peer == self) continue;
    SORTIE_TRY(links.receive(peer, kHelloTag, std::as_writable_bytes(std::span(&hellos[peer], 1))));
    if (hellos[peer].epoch != order.epoch)
      return fail(ErrorCode::protocol,
                  fmt::format("site {}: its greeting is of epoch {}, not {}",
                              order.members[peer].site, hellos[peer].epoch, order.epoch));
  }
  StateOutcome outcome;
  // All members compute the same one.
  const std::uint64_t usual = usual_hash(hellos);
  for (std::size_t member = 0; member < members; ++member) {
    if (hellos[member].lacks_state != 0 || hellos[member].hash == usual) continue;
    outcome.differs = outcome.differs || member == self;
    outcome.reason =
        fmt::format("site {} has other outer weights than most sites", order.members[member].site);
  }
  if (!outcome.reason.empty()) return outcome;  // that site copies the state, and all try again

  std::optional<std::size_t> donor;
  if (offer.lacks_state) {
    donor = choose_donor(order, hellos, offer, self);
    if (!donor)
      return fail(ErrorCode::unsupported,
                  fmt::format("no site of epoch {} has the state of the run", order.epoch));
    outcome.donor = order.members[*donor].site;
    for (std::size_t peer = 0; peer < members; ++peer) {
      wishes[peer].wanted = peer == *donor ? 1 : 0;
      if (peer != self) SORTIE_TRY(links.send(peer, kWishTag, bytes_of(wishes[peer])));
    }
  }
  const bool some_lack =
      std::ranges::any_of(hellos, [](const Hello& hello) { return hello.lacks_state != 0; });
  if (!some_lack) {
    SORTIE_TRY(links.flush());
    return outcome;
  }
  SORTIE_ASSIGN_OR_RETURN(const CopiedState mine, state());
  for (std::size_t peer = 0; peer < members; ++peer) {
    if (peer == self || hellos[peer].lacks_state == 0) continue;
    Wish wish;
    SORTIE_TRY(links.receive(peer, kWishTag, std::as_writable_bytes(std::span(&wish, 1))));
    if (wish.wanted != 0 && !offer.lacks_state) SORTIE_TRY(send_state(links, peer, mine));
  }
  if (donor) {
    SORTIE_TRY(receive_state(links, *donor, mine));
    outcome.copied = true;
  }
  SORTIE_TRY(links.flush());
  return outcome;
}

}  // namespace sortie::trainer::outer
