{
  "targets": [{
    "target_name": "virtual_kv",
    "sources": ["<!@(node -p \"require('fs').readFileSync('native/sources.txt','utf8').split(/\\r?\\n/).filter(l=>l&&l[0]!=='#').join(' ')\")"],
    "include_dirs": ["native", ".", "<!(node scripts/addon-sources.cjs)"],
    "defines": ["NAPI_VERSION=8", "NODE_ADDON_API_DISABLE_DEPRECATED", "NAPI_DISABLE_CPP_EXCEPTIONS", "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS", "VKV_BUILD_TOOL=\"node-gyp\"", "VKV_VERSION=\"<!(node -p \"require('./package.json').version\")\""],
    "cflags_cc!": ["-std=gnu++17", "-std=gnu++20"],
    "cflags_cc": ["-std=c++20", "-Wall", "-Wextra", "-fvisibility=hidden", "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"],
    "ldflags": ["-Wl,-z,relro,-z,now,-z,noexecstack", "-s"],
    "libraries": ["-ldl", "-lpthread"]
  }]
}
