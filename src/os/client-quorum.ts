/** Whether a mount of replicated storage stops writing when it has lost the majority of the replicas. */

/** What of a mount a search for its quorum may need; see mounts.ts. */
type Mount = { readonly path: string; readonly source: string; readonly type: string };

/** A mount table says nothing of it. */
export const clientQuorum = async ({
  type,
  source,
}: Mount): Promise<{ readonly known: boolean; readonly text: string }> => ({
  known: false,
  text: `a mount of ${type} (${source}) does not show it`,
});
