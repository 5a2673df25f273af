-- sealring/1 for Wireshark and tshark: frames, and what handshakes show in the clear.
--
--     tshark -X lua_script:spec/wireshark/sealring.lua -r ring.pcap -Y sealring
--
-- A TCP stream is taken for sealring by its first frame, which is an INIT or a JOIN_INIT; for one
-- that was recorded later, say so: -d tcp.port==7470,sealring. Sealed frames stay sealed; `sealring
-- decode` opens a link's with a node's keys.

local sealring = Proto("sealring", "sealring/1")

local HEADER = 8
local kinds = { [1] = "handshake", [2] = "sealed", [3] = "local" }
local suites = { [1] = "AES-256-GCM", [2] = "ChaCha20-Poly1305" }

-- What handshake messages have in the clear after their code, as `python -m spec.generate` says.
-- generated
local layouts = {
   [1] = { name = "INIT",
      { name = "wall_ms", size = 8 },
      { name = "suites", size = 4 },
      { name = "x_I", size = 32 },
      { name = "ek_I", size = 1184 },
      { name = "tag", size = 32 },
   },
   [2] = { name = "RESP",
      { name = "suite", size = 1 },
      { name = "x_R", size = 32 },
      { name = "ct", size = 1088 },
   },
   [3] = { name = "FIN",
   },
   [21] = { name = "JOIN_INIT",
      { name = "wall_ms", size = 8 },
      { name = "suites", size = 4 },
      { name = "x_J", size = 32 },
      { name = "ek_J", size = 1184 },
      { name = "tag", size = 32 },
   },
   [22] = { name = "JOIN_RESP",
      { name = "suite", size = 1 },
      { name = "x_H", size = 32 },
      { name = "ct", size = 1088 },
   },
   [23] = { name = "JOIN_FIN",
   },
}
-- end

local f = {
   version = ProtoField.uint8("sealring.version", "Version"),
   kind = ProtoField.uint8("sealring.kind", "Kind", base.DEC, kinds),
   zero = ProtoField.uint16("sealring.zero", "Reserved"),
   length = ProtoField.uint32("sealring.length", "Length of the body"),
   aes = ProtoField.bool("sealring.suites.aes", "AES-256-GCM", 32, nil, 0x2),
   chacha = ProtoField.bool("sealring.suites.chacha", "ChaCha20-Poly1305", 32, nil, 0x4),
   sealed = ProtoField.bytes("sealring.sealed", "Sealed"),
}
local codes, sizes = {}, {}
for code, layout in pairs(layouts) do
   codes[code], sizes[code] = layout.name, 1
   for _, field in ipairs(layout) do sizes[code] = sizes[code] + field.size end
end
f.code = ProtoField.uint8("sealring.code", "Message", base.HEX, codes)
for _, layout in pairs(layouts) do
   for _, field in ipairs(layout) do
      local name = "sealring." .. layout.name:lower() .. "." .. field.name:lower()
      if field.name == "suite" then
         field.shown = ProtoField.uint8(name, field.name, base.DEC, suites)
      elseif field.name == "suites" then
         field.shown = ProtoField.uint32(name, field.name, base.HEX)
      elseif field.size == 8 then
         field.shown = ProtoField.uint64(name, field.name)
      else
         field.shown = ProtoField.bytes(name, field.name)
      end
      f[name] = field.shown
   end
end
sealring.fields = f

local bad = ProtoExpert.new(
   "sealring.malformed", "Not a frame of sealring/1", expert.group.MALFORMED, expert.severity.ERROR)
sealring.experts = { bad }

local function handshake(frame, tree)
   if frame:len() == HEADER then
      tree:add_proto_expert_info(bad, "A handshake frame without a message")
      return "empty"
   end
   local code, at = frame(HEADER, 1):uint(), HEADER + 1
   local layout = layouts[code]
   if not layout or frame:len() < HEADER + sizes[code] then
      tree:add_proto_expert_info(bad, "No handshake message has this code and length")
      return "malformed"
   end
   tree:add(f.code, frame(HEADER, 1))
   for _, field in ipairs(layout) do
      local item = tree:add(field.shown, frame(at, field.size))
      if field.name == "suites" then
         item:add(f.aes, frame(at, field.size))
         item:add(f.chacha, frame(at, field.size))
      end
      at = at + field.size
   end
   if at < frame:len() then tree:add(f.sealed, frame(at)) end
   return layout.name
end

local function one(frame, pinfo, root)
   local tree = root:add(sealring, frame())
   tree:add(f.version, frame(0, 1))
   tree:add(f.kind, frame(1, 1))
   tree:add(f.zero, frame(2, 2))
   tree:add(f.length, frame(4, 4))
   local kind, told = frame(1, 1):uint(), nil
   if frame(0, 1):uint() ~= 1 or frame(2, 2):uint() ~= 0 or not kinds[kind] then
      tree:add_proto_expert_info(bad)
      told = "malformed"
   elseif kind == 1 then
      told = handshake(frame, tree)
   else
      told = kinds[kind]
      if frame:len() > HEADER then tree:add(f.sealed, frame(HEADER)) end
   end
   tree:append_text(": " .. told)
   pinfo.cols.protocol = "sealring"
   pinfo.cols.info:append(" " .. told .. " " .. frame:len())
   pinfo.cols.info:fence()
   return frame:len()
end

local function length(frame, _, at)
   return HEADER + frame(at + 4, 4):uint()
end

local function dissect(buffer, pinfo, root)
   pinfo.cols.info = ""
   dissect_tcp_pdus(buffer, root, HEADER, length, function(tvb, info, tree)
      return one(tvb, info, tree)
   end)
   return buffer:len()
end
sealring.dissector = dissect

-- The first frame of a link or a join: version 1, handshake, 0, the length and code of its INIT.
sealring:register_heuristic("tcp", function(buffer, pinfo, root)
   if buffer:len() < HEADER + 1 then return false end
   local code = buffer(HEADER, 1):uint()
   if codes[code] ~= "INIT" and codes[code] ~= "JOIN_INIT" then return false end
   if buffer(0, 4):uint() ~= 0x01010000 or buffer(4, 4):uint() ~= sizes[code] then return false end
   dissect(buffer, pinfo, root) -- not the dissector: one more call between takes reassembly away
   pinfo.conversation = sealring
   return true
end)

DissectorTable.get("tcp.port"):add_for_decode_as(sealring)
