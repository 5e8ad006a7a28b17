#include "runner/mpi/mpi_program.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "common/base/fd.h"

namespace sortie::runner {
namespace {

constexpr std::size_t kMaxSegments = 1024;
constexpr std::size_t kMaxDynamicEntries = 65536;
constexpr std::uint64_t kMaxNames = 16u << 20;  // bytes of the string table
constexpr std::size_t kMaxNameBytes = 255;

std::unexpected<Error> broken(const char* what) {
  return fail(ErrorCode::data, std::string("not an ELF program: ") + what);
}

template <class T>
bool read_one(const ReadAt& read, std::uint64_t offset, T& value) {
  return read(offset, {reinterpret_cast<char*>(&value), sizeof value});
}

/// Offset in the file of an address of the loaded program.
std::optional<std::uint64_t> file_offset(const std::vector<Elf64_Phdr>& segments,
                                         std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments)
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz)
      return address - segment.p_vaddr + segment.p_offset;
  return std::nullopt;
}

Result<std::vector<Elf64_Phdr>> read_segments(const ReadAt& read) {
  Elf64_Ehdr header{};
  if (!read_one(read, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return broken("no ELF header");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
    return broken("not 64-bit little-endian");
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMaxSegments)
    return broken("segments of an unknown form");
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (!read_one(read, header.e_phoff + i * sizeof(Elf64_Phdr), segments[i]))
      return broken("segments are cut off");
  return segments;
}

std::string read_name(const ReadAt& read, std::uint64_t offset) {
  std::string name;
  for (char c = 0; name.size() < kMaxNameBytes && read_one(read, offset + name.size(), c) && c;)
    name += c;
  return name;
}

}  // namespace

Result<std::vector<std::string>> needed_libraries(const ReadAt& read) {
  auto segments = read_segments(read);
  if (!segments) return std::unexpected(std::move(segments).error());
  const auto dynamic = std::ranges::find(*segments, Elf64_Word{PT_DYNAMIC}, &Elf64_Phdr::p_type);
  if (dynamic == segments->end()) return std::vector<std::string>();
  std::vector<std::uint64_t> names;
  std::uint64_t table = 0, table_bytes = 0;
  const std::uint64_t count =
      std::min<std::uint64_t>(dynamic->p_filesz / sizeof(Elf64_Dyn), kMaxDynamicEntries);
  for (std::uint64_t i = 0; i < count; ++i) {
    Elf64_Dyn entry{};
    if (!read_one(read, dynamic->p_offset + i * sizeof entry, entry))
      return broken("the dynamic section is cut off");
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_NEEDED) names.push_back(entry.d_un.d_val);
    if (entry.d_tag == DT_STRTAB) table = entry.d_un.d_ptr;
    if (entry.d_tag == DT_STRSZ) table_bytes = entry.d_un.d_val;
  }
  std::vector<std::string> libraries;
  if (names.empty()) return libraries;
  const auto at = file_offset(*segments, table);
  if (!at || table_bytes > kMaxNames) return broken("no table of names");
  for (const std::uint64_t name : names)
    if (name < table_bytes) libraries.push_back(read_name(read, *at + name));
  return libraries;
}

Result<std::vector<std::string>> needed_libraries(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return std::unexpected(os_error(errno, path));
  return needed_libraries([&file](std::uint64_t offset, std::span<char> to) {
    if (offset > std::uint64_t{1} << 60) return false;
    return ::pread(file.get(), to.data(), to.size(), static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(to.size());
  });
}

std::string mpi_library(const std::vector<std::string>& needed) {
  // Open MPI, MPICH and its derivatives, and their C++ and Fortran bindings, which may be linked
  // alone.
  for (const std::string& name : needed)
    if (name.starts_with("libmpi.so") || name.starts_with("libmpi_") ||
        name.starts_with("libmpich") || name.starts_with("libmpifort") ||
        name.starts_with("libmpicxx"))
      return name;
  return "";
}

}  // namespace sortie::runner
