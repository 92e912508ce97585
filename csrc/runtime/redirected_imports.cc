#include "runtime/redirected_imports.h"

#if defined(__linux__) && defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

namespace torch_tpu::runtime {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kSlotTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64};
#else
constexpr uint32_t kSlotTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
#endif

// A library's dynamic section (System V ABI, chapter 5): its imports and where their addresses are.
class Imports {
 public:
  explicit Imports(const link_map& library) : base_(library.l_addr) {
    for (const ElfW(Dyn)* d = library.l_ld; d->d_tag != DT_NULL; ++d) {
      switch (d->d_tag) {
        case DT_SYMTAB:
          symbols_ = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr);
          break;
        case DT_STRTAB:
          names_ = reinterpret_cast<const char*>(d->d_un.d_ptr);
          break;
        case DT_JMPREL:
          calls_ = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr);
          break;
        case DT_PLTRELSZ:
          num_calls_ = d->d_un.d_val / sizeof(ElfW(Rela));
          break;
        case DT_RELA:
          data_ = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr);
          break;
        case DT_RELASZ:
          num_data_ = d->d_un.d_val / sizeof(ElfW(Rela));
          break;
        default:
          break;
      }
    }
  }

  std::vector<uintptr_t> slots_of(std::string_view name) const {
    std::vector<uintptr_t> slots;
    if (!symbols_ || !names_) return slots;
    add_slots({calls_, calls_ ? num_calls_ : 0}, name, slots);
    add_slots({data_, data_ ? num_data_ : 0}, name, slots);
    return slots;
  }

 private:
  void add_slots(std::span<const ElfW(Rela)> relocations, std::string_view name,
                 std::vector<uintptr_t>& slots) const {
    for (const ElfW(Rela) & r : relocations) {
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(r.r_info));
      if (type != kSlotTypes[0] && type != kSlotTypes[1] && type != kSlotTypes[2]) continue;
      const ElfW(Sym) & symbol = symbols_[ELF64_R_SYM(r.r_info)];
      if (symbol.st_shndx == SHN_UNDEF && r.r_addend == 0 && names_ + symbol.st_name == name) {
        slots.push_back(base_ + r.r_offset);
      }
    }
  }

  uintptr_t base_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  const ElfW(Rela) * calls_ = nullptr;
  const ElfW(Rela) * data_ = nullptr;
  size_t num_calls_ = 0, num_data_ = 0;
};

// Where the loader has made a library's addresses read-only again.
struct Protected {
  uintptr_t base;
  uintptr_t begin = 0, end = 0;
};

// The loader's type of function. NOLINTNEXTLINE(misc-const-correctness)
int find_protected(dl_phdr_info* info, size_t, void* result) {
  auto& found = *static_cast<Protected*>(result);
  if (info->dlpi_addr != found.base) return 0;
  for (const ElfW(Phdr) & p : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    if (p.p_type != PT_GNU_RELRO) continue;
    found.begin = info->dlpi_addr + p.p_vaddr;
    found.end = found.begin + p.p_memsz;
  }
  return 1;
}

bool write_slot(uintptr_t slot, void* function, const Protected& read_only) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const page = reinterpret_cast<void*>(slot / page_size * page_size);
  const bool is_protected = slot >= read_only.begin && slot < read_only.end;
  if (is_protected && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return false;
  std::atomic_ref<void*>(*reinterpret_cast<void**>(slot)).store(function);
  if (is_protected) mprotect(page, page_size, PROT_READ);
  return true;
}

}  // namespace

bool redirect_imports(const void* inside, std::span<const Redirection> redirections) {
  Dl_info info;
  link_map* library = nullptr;
  if (dladdr1(inside, &info, reinterpret_cast<void**>(&library), RTLD_DL_LINKMAP) == 0 ||
      library == nullptr) {
    return false;
  }
  Protected read_only{library->l_addr};
  dl_iterate_phdr(find_protected, &read_only);
  const Imports imports(*library);
  bool first = true;
  for (const Redirection& r : redirections) {
    const std::vector<uintptr_t> slots = imports.slots_of(r.name);
    if (first && slots.empty()) return false;
    for (const uintptr_t slot : slots) {
      // The first one fails before anything has changed; the protection of the others is the same.
      if (!write_slot(slot, r.function, read_only)) return false;
    }
    first = false;
  }
  return true;
}

}  // namespace torch_tpu::runtime

#else

namespace torch_tpu::runtime {

bool redirect_imports(const void*, std::span<const Redirection>) { return false; }

}  // namespace torch_tpu::runtime

#endif
