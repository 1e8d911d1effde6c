# Joins page.html, chat.css and chat.js (of the working directory) to chat.html, and writes it, its
# policy and its icon as C++ arrays into OUT: a raw string literal would be limited to 64 KiB.

# hash_of(FILE OUT): its SHA-256 in base64, as a Content-Security-Policy names it.
function(hash_of file out)
  file(SHA256 ${file} hex)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  set(text "")
  # Three bytes are four digits. 32 bytes lack one of a multiple of three: a zero, and one "=".
  foreach(i RANGE 0 60 6)
    string(SUBSTRING "${hex}00" ${i} 6 three)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${three} >> ${shift}) & 63")
      string(SUBSTRING ${digits} ${digit} 1 character)
      string(APPEND text ${character})
    endforeach()
  endforeach()
  string(SUBSTRING ${text} 0 43 text)
  set(${out} "${text}=" PARENT_SCOPE)
endfunction()

# array_of(FILE NAME OUT): "constexpr char NAME[] = {...};"
function(array_of file name out)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  set(${out} "constexpr char ${name}[] = {${bytes}};\n" PARENT_SCOPE)
endfunction()

# A browser hashes the text between the tags, so nothing may be added there.
file(READ ${SOURCES}/page.html page)
file(READ chat.css style)
file(READ chat.js script)
if(script MATCHES "</script" OR style MATCHES "</style")
  message(FATAL_ERROR "the script or the style would end early in the page")
endif()
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")
file(WRITE chat.html "${page}")

hash_of(chat.css style_hash)
hash_of(chat.js script_hash)
string(CONCAT policy "default-src 'none'; script-src 'sha256-${script_hash}'; "
       "style-src 'sha256-${style_hash}'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
       "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
       "trusted-types 'none'")

array_of(chat.html kPage page_array)
array_of(${SOURCES}/icon.svg kIcon icon_array)
file(WRITE ${OUT} "#include \"server/web/chat_page.h\"
namespace tessera {
namespace {
${page_array}${icon_array}}
std::string_view chat_page() { return {kPage, sizeof(kPage)}; }
std::string_view chat_page_policy() { return \"${policy}\"; }
std::string_view chat_icon() { return {kIcon, sizeof(kIcon)}; }
}
")
