/** What lies under the log directory, as the log keeps it in the header of each epoch. */
export type StorageFacts = {
  /** Type of the file system as the kernel names it ('nfs4', 'ext4'). */
  readonly type: string;
  /** Mount source, and mount point. */
  readonly source: string;
  readonly path: string;
  /** What a probe has shown, where there was one. */
  readonly probe?: ProbeReport;
};

export type ProbeReport = {
  /** The promises that were seen kept. */
  readonly kept: readonly string[];
  /** Between clients: how often one client did not see at once what another had made durable; null: not tried. */
  readonly staleness: { readonly rounds: number; readonly stale: number } | null;
};

/** How the log asks about its storage. Both throw XceError 'storage-unfit', or 'log-missing' without a directory. */
export type StoragePort = {
  /** Type and mount options; writes nothing. */
  look(directory: string): Promise<StorageFacts>;
  /** The same, and tries each promise on files of its own in the directory. */
  probe(directory: string): Promise<StorageFacts>;
};

export const encodeStorage = ({ type, source, path, probe }: StorageFacts): string =>
  JSON.stringify({ type, source, path, probe });

/** What a header says of its storage, for people; its text as it is where that is no JSON. */
export const decodeStorage = (text: string): unknown => {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return text;
    throw error;
  }
};

/** The type in a header's storage text; undefined when it says none. */
export const storageTypeOf = (text: string): string | undefined => {
  const value = decodeStorage(text);
  if (typeof value !== 'object' || value === null || !('type' in value)) return undefined;
  return typeof value.type === 'string' ? value.type : undefined;
};
