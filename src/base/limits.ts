/** Bounds on everything that comes from outside. Units stand last in the names. */
export const LIMITS = {
  configBytesMax: 1 << 20,
  jobIdBytesMax: 128,
  instanceCharsMax: 16,
  nodeNameCharsMax: 253,
  nodesMax: 65_536,
  nodeListCharsMax: 1 << 16,
  nodeListBracketsMax: 4,
  leaseNodesMax: 16_384,
  /** All node names of a lease together, with hosts that join later, so that one record can name each of them twice. */
  leaseNodesBytesMax: 1 << 20,
  /**
   * What the nodes of a job and the paths of its lease take in the JSON of each ticket, quotes and commas counted. Of
   * ticketCharsMax, 92 are no JSON ("xce1.", "." and 86 of a signature), and base64 takes 4 characters for 3 bytes: that
   * leaves (1,048,576 - 92) * 3/4 = 786,363 bytes, 4,027 of them for what else a ticket claims. That is less than 3 KiB
   * at most: names of claims and numbers 400, cluster and storage (253 + 64) * 6, job 128 * 2, node 253, nonce 32.
   */
  leaseTicketBytesMax: 764 << 10,
  leaseRootsMax: 64,
  /** The roots and the workspace. */
  leaseScopesMax: 65,
  endedAttemptsMax: 1 << 19,
  storageNameBytesMax: 64,
  mountWordBytesMax: 64,
  bootIdBytesMax: 64,
  workerKeyBytes: 32,
  nonceBytes: 16,
  digestBytes: 32,
  ticketCharsMax: 1 << 20,
  certificateCharsMax: 16 << 10,
  pathBytesMax: 4095,
  reasonCharsMax: 512,
  /** The name under which an operator attests something. */
  operatorCharsMax: 64,
  ttlMsMax: 366 * 24 * 3600 * 1000,
  ttlMsMin: 1000,
  /** How far the clock of a controller may be from that of a worker that takes its ticket. */
  clockSkewMsMax: 300 * 1000,
  /** Longest [nodes] connect_timeout and [mpi] agent_timeout: what waits for a worker waits longer than both. */
  connectTimeoutMsMax: 5 * 60 * 1000,
  agentTimeoutMsMax: 3600 * 1000,
  /** Node fires a longer timer at once. */
  timerMsMax: 2_147_483_647,
  recordBytesMax: 4 << 20,
  /** Names in the directory of the lease log. */
  logNamesMax: 1 << 20,
  /** Beside the epochs the directory holds what takes have prepared, and the files of a probe. */
  logEpochsMax: (1 << 20) - (1 << 10),
  /** From here on the epochs that are left are for takes that cannot wait. */
  logEpochsCompactMax: 7 << 17,
  /** Events are never compacted while there are fewer bytes of them. */
  logTailBytesMin: 1 << 20,
  /** The file with which a host proves that it owns an epoch of the log. */
  logTokenBytesMax: 160,
  /** What a probe of the storage is called by, reads and asks for at once, waits for a lock, and takes in all. */
  probeIdBytes: 8,
  probeClientCharsMax: 128,
  probeTextBytesMax: 4 << 10,
  probeActionsMax: 32,
  probeLockWaitMsMax: 10_000,
  probeMsMax: 3600 * 1000,
  probeRecordBytesMax: 64 << 10,
  messageBytesMax: 4 << 20,
  metricFamiliesMax: 64,
  /** Of one family: more than there are pairs of a verb and a code. */
  metricSamplesMax: 2048,
  frameBytesMax: 64 << 10,
  pemBytesMax: 64 << 10,
  revocationsMax: 10_000,
  revocationsBytesMax: 1 << 20,
  argvCountMax: 16_384,
  argvBytesMax: 1 << 20,
  envCountMax: 4096,
  envBytesMax: 1 << 20,
  /** Processors of one node, and devices that one job asks for. */
  cpusMax: 8192,
  devicesMax: 256,
  environmentsMax: 256,
  stepsPerSandboxMax: 256,
  /** Tasks of one launch on one node; what is to end them needs room on the same connection. */
  tasksPerNodeMax: 128,
  /** A file with variables for a job, and what a launch says of a directory that cannot be entered. */
  envFileBytesMax: 1 << 20,
  stepComplaintBytesMax: 1 << 10,
  /** Launches that a worker remembers to have ended. */
  endedLaunchesMax: 4096,
  sandboxesMax: 1024,
  /** Bounds of a limit of memory: with less than the lower one no step gets as far as its command. */
  sandboxMemoryBytesMin: 16 << 20,
  sandboxMemoryBytesMax: 2 ** 46,
  /** Of file systems, locked memory and the stack, as the configuration has them. */
  sizeBytesMax: 2 ** 46,
  /** Bounds of a limit of processes and threads; the upper one is the kernel's largest pid_max. */
  sandboxTasksMin: 16,
  sandboxTasksMax: 1 << 22,
  connectionsMax: 4096,
  streamsPerConnectionMax: 256,
  streamsPerSandboxConnectionMax: 8,
  requestBytesInAllMax: 256 << 20,
  sandboxRequestBytesInAllMax: 32 << 20,
  requestsInFlightMax: 4096,
  headerPairsMax: 16,
  headerBytesMax: 4 << 10,
  childOutputBytesMax: 1 << 20,
  /** Tables and queues of one IPC namespace: some eight times what the kernel's own limits let a job make there. */
  ipcTablesBytesMax: 64 << 20,
} as const;
