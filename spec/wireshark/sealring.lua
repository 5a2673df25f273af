-- sealring/1 for Wireshark and tshark: frames, and what handshakes show in the clear.
--
--     tshark -X lua_script:spec/wireshark/sealring.lua -r ring.pcap -Y sealring
--
-- A TCP stream is taken for sealring by its first frame, which is an INIT; for one that was recorded
-- later, say so: -d tcp.port==7470,sealring. Sealed frames stay sealed; `sealring decode` opens
-- them with a node's keys. The offsets are those of sections 4 and 5 of spec/sealring-1.md.

local sealring = Proto("sealring", "sealring/1")

local HEADER = 8
local INIT, RESP, FIN = 1, 2, 3
local INIT_FRAME, RESP_FRAME = 1269, 1322
local kinds = { [1] = "handshake", [2] = "sealed", [3] = "local" }
local codes = { [INIT] = "INIT", [RESP] = "RESP", [FIN] = "FIN" }
local suites = { [1] = "AES-256-GCM", [2] = "ChaCha20-Poly1305" }

local f = {
   version = ProtoField.uint8("sealring.version", "Version"),
   kind = ProtoField.uint8("sealring.kind", "Kind", base.DEC, kinds),
   zero = ProtoField.uint16("sealring.zero", "Reserved"),
   length = ProtoField.uint32("sealring.length", "Length of the body"),
   code = ProtoField.uint8("sealring.code", "Message", base.HEX, codes),
   wall = ProtoField.uint64("sealring.init.wall_ms", "Initiator's clock (ms since 1970)"),
   offered = ProtoField.uint32("sealring.init.suites", "Suites offered", base.HEX),
   aes = ProtoField.bool("sealring.init.suites.aes", "AES-256-GCM", 32, nil, 0x2),
   chacha = ProtoField.bool("sealring.init.suites.chacha", "ChaCha20-Poly1305", 32, nil, 0x4),
   ek = ProtoField.bytes("sealring.init.ek", "ML-KEM-768 encapsulation key"),
   tag = ProtoField.bytes("sealring.init.tag", "Admission tag"),
   suite = ProtoField.uint8("sealring.resp.suite", "Suite chosen", base.DEC, suites),
   x = ProtoField.bytes("sealring.x", "X25519 public key"),
   ct = ProtoField.bytes("sealring.resp.ct", "ML-KEM-768 ciphertext"),
   sealed = ProtoField.bytes("sealring.sealed", "Sealed"),
}
sealring.fields = f

local bad = ProtoExpert.new(
   "sealring.malformed", "Not a frame of sealring/1", expert.group.MALFORMED, expert.severity.ERROR)
sealring.experts = { bad }

local function init(frame, tree)
   tree:add(f.wall, frame(9, 8))
   local offered = tree:add(f.offered, frame(17, 4))
   offered:add(f.aes, frame(17, 4))
   offered:add(f.chacha, frame(17, 4))
   tree:add(f.x, frame(21, 32))
   tree:add(f.ek, frame(53, 1184))
   tree:add(f.tag, frame(1237, 32))
end

local function resp(frame, tree)
   tree:add(f.suite, frame(9, 1))
   tree:add(f.x, frame(10, 32))
   tree:add(f.ct, frame(42, 1088))
   tree:add(f.sealed, frame(1130))
end

local function handshake(frame, tree)
   if frame:len() == HEADER then
      tree:add_proto_expert_info(bad, "A handshake frame without a message")
      return "empty"
   end
   local code = frame(HEADER, 1):uint()
   tree:add(f.code, frame(HEADER, 1))
   if code == INIT and frame:len() == INIT_FRAME then
      init(frame, tree)
   elseif code == RESP and frame:len() == RESP_FRAME then
      resp(frame, tree)
   elseif code == FIN and frame:len() > HEADER + 1 then
      tree:add(f.sealed, frame(HEADER + 1))
   else
      tree:add_proto_expert_info(bad, "No handshake message has this code and length")
      return "malformed"
   end
   return codes[code]
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

-- The first frame of a link: version 1, handshake, 0, 1,261 bytes, INIT.
sealring:register_heuristic("tcp", function(buffer, pinfo, root)
   if buffer:len() < HEADER + 1 then return false end
   if buffer(0, 4):uint() ~= 0x01010000 or buffer(4, 4):uint() ~= INIT_FRAME - HEADER then
      return false
   end
   if buffer(HEADER, 1):uint() ~= INIT then return false end
   dissect(buffer, pinfo, root) -- not the dissector: one more call between takes reassembly away
   pinfo.conversation = sealring
   return true
end)

DissectorTable.get("tcp.port"):add_for_decode_as(sealring)
