#include "src/pool/withhold_libraries.h"

#include <algorithm>
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <map>
#include <set>
#include <unistd.h>

#include "absl/strings/match.h"
#include <sys/mman.h>

namespace lowerd::pool {
namespace {

struct Library {
  // As others ask for it.
  std::string soname;
  std::vector<std::string> needed;
};

using Address = ElfW(Addr);

// By load address. The main program has no name.
std::map<Address, Library> LoadedLibraries() {
  std::map<Address, Library> out;
  void* self = ::dlopen(nullptr, RTLD_NOW);
  if (self == nullptr) return out;
  for (const auto* map = static_cast<const link_map*>(self); map != nullptr; map = map->l_next) {
    const char* strings = nullptr;
    for (const auto* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    }
    // The kernel's vdso is not relocated and needs nothing.
    if (strings == nullptr || reinterpret_cast<Address>(strings) < map->l_addr) continue;
    Library library;
    for (const auto* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_NEEDED) library.needed.emplace_back(strings + entry->d_un.d_val);
      if (entry->d_tag == DT_SONAME) library.soname = strings + entry->d_un.d_val;
    }
    if (library.soname.empty()) {
      const absl::string_view path(map->l_name);
      library.soname = std::string(path.substr(path.rfind('/') + 1));
    }
    out.emplace(map->l_addr, std::move(library));
  }
  ::dlclose(self);
  return out;
}

using Graph = std::map<std::string, std::vector<std::string>>;

void Reach(const Graph& graph, const std::string& name, std::set<std::string>& reached) {
  if (!reached.insert(name).second) return;
  const auto found = graph.find(name);
  if (found == graph.end()) return;
  for (const std::string& needed : found->second) Reach(graph, needed, reached);
}

int WithholdOne(dl_phdr_info* info, size_t, void* withheld) {
  const auto& addresses = *static_cast<const std::set<Address>*>(withheld);
  if (addresses.count(info->dlpi_addr) == 0) return 0;
  // Every new thread copies the initial values of all thread-local variables.
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type == PT_TLS) return 0;
  }
  const Address page = static_cast<Address>(::sysconf(_SC_PAGESIZE));
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const Address begin = (info->dlpi_addr + header.p_vaddr) & ~(page - 1);
    const Address end = info->dlpi_addr + header.p_vaddr + header.p_memsz;
    // One that stays costs time, nothing else.
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTFORK);
  }
  return 0;
}

}  // namespace

int WithholdLibraries(absl::string_view from, const std::vector<std::string>& needed) {
  // glibc opens the unwinder at the first stack trace, and compares its name with every library's.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  const std::map<Address, Library> libraries = LoadedLibraries();
  Graph all, without;
  for (const auto& [address, library] : libraries) {
    all[library.soname] = library.needed;
    std::vector<std::string>& kept = without[library.soname];
    std::copy_if(library.needed.begin(), library.needed.end(), std::back_inserter(kept),
                 [&](const std::string& name) {
                   return !absl::StartsWith(library.soname, from) ||
                          std::none_of(needed.begin(), needed.end(),
                                       [&](const std::string& prefix) {
                                         return absl::StartsWith(name, prefix);
                                       });
                 });
  }
  // Reached from the program, or loaded by hand.
  std::set<std::string> asked_for, used;
  for (const auto& [name, needs] : all) asked_for.insert(needs.begin(), needs.end());
  for (const auto& [name, needs] : all) {
    if (asked_for.count(name) == 0) Reach(without, name, used);
  }
  std::set<Address> withheld;
  for (const auto& [address, library] : libraries) {
    if (used.count(library.soname) == 0) withheld.insert(address);
  }
  ::dl_iterate_phdr(WithholdOne, &withheld);
  return static_cast<int>(withheld.size());
}

}  // namespace lowerd::pool
