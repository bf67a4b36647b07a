/**
 * What a probe asks for: single operations on files of its own, done by a process of this host or of another one,
 * one after the other. What they show is for probe-script.ts to judge.
 */

/** `name` is what stands behind the stem of the probe; see names.ts. Texts are ASCII. */
export type ProbeAction =
  /** Makes a file exclusively, with this text, fsynced. Not done: there is one. */
  | { readonly act: 'create'; readonly name: string; readonly text: string }
  /** link(2). Not done: there is such a name. */
  | { readonly act: 'link'; readonly name: string; readonly to: string }
  | { readonly act: 'rename'; readonly name: string; readonly to: string }
  /** Not done: there is no such name. */
  | { readonly act: 'remove'; readonly name: string }
  /** Makes the names in the directory seen, as who takes an epoch does, by a name that is free or to be removed. */
  | { readonly act: 'settle'; readonly name: string }
  /** Makes them durable. */
  | { readonly act: 'sync-directory' }
  /** Looks for a name as the log looks for a successor. Not done: it does not show. */
  | { readonly act: 'look'; readonly name: string }
  /** Opens a file anew, without a lock, as a reader of the log does. Gives what stands from `from` on. */
  | { readonly act: 'read'; readonly name: string; readonly from: number }
  /** Opens a file and keeps it open; without effect when it is. */
  | { readonly act: 'open'; readonly name: string }
  /** On a file that is kept open; fsyncs it. */
  | { readonly act: 'append'; readonly name: string; readonly text: string }
  /** Asks for the lock on a file that is kept open, for so long. Not done: somebody else has it. */
  | { readonly act: 'lock'; readonly name: string; readonly waitMs: number }
  | { readonly act: 'unlock'; readonly name: string }
  /** As a writer of the log that has just locked it: fsyncs a file that is kept open, asks its size, reads to there. */
  | { readonly act: 'tail'; readonly name: string; readonly from: number }
  /** Gives up all files that are kept open. */
  | { readonly act: 'close' };

export type ProbeResult = {
  readonly done: boolean;
  /** What was read; null for an action that reads nothing, and for a file that is not there. */
  readonly text: string | null;
};

/** A process that does as it is told. Rejects with XceError when an operation fails. */
export type ProbeProcess = {
  perform(actions: readonly ProbeAction[]): Promise<readonly ProbeResult[]>;
};

/** A process of ours that can be killed. */
export type SecondProcess = ProbeProcess & {
  /** By SIGKILL; resolves when it is gone. Without effect when it is gone already. */
  kill(): Promise<void>;
};

/** One host of a probe: one process of it that lives as long as the probe, and another that can be killed. */
export type ProbeParty = {
  /** Its node name. */
  readonly node: string;
  readonly first: ProbeProcess;
  /** Started when it is first told something, and again after it was killed. */
  readonly second: SecondProcess;
};
